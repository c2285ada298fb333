"""Reads config.json and generation_config.json; derives the keys of a run's tokenizers."""

import json
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.interop.families import FAMILIES, Family
from transformer_jax.interop.families.base import Keys
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.runtime.files import METADATA_BYTES, read_regular
from transformer_jax.tokenization import Labels, Tokenizers

NO_TOKEN = -1
"""Id of a missing special token, in older files of Llama."""
CONFIG = "config.json"
GENERATION = "generation_config.json"


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object. Raises UserError if the file is missing or contains something else."""
    try:
        content = json.loads(read_regular(path.resolve(), METADATA_BYTES))
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} contains no model: {path.name} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object")
    return content


def find_family(keys: Keys) -> tuple[Family, str]:
    """Finds the family of a model, and its class in transformers.

    Raises:
      UserError: the family or the class is not supported.
    """
    family = FAMILIES.get(str(keys.get("model_type")))
    if family is None:
        raise UserError(
            f"config.json: model_type is {keys.get('model_type')!r}; supported are "
            f"{', '.join(FAMILIES)}"
        )
    classes = keys.get("architectures") or [next(iter(family.tasks))]
    if not isinstance(classes, list) or str(classes[0]) not in family.tasks:
        raise UserError(
            f"config.json: architectures is {classes!r}; supported for {family.model_type} are "
            f"{', '.join(family.tasks)}"
        )
    return family, classes[0]


def special_ids(keys: Keys) -> dict[str, int]:
    """Special tokens of a config.json: role, as in `import_tokenizer` -> id."""
    ids = {}
    for name in ("pad", "bos", "eos", "decoder_start"):
        given = keys.get(f"{name}_token_id")
        ids[name] = given[0] if isinstance(given, list) and given else given
    ids["start"] = ids.pop("decoder_start")
    return {name: given for name, given in ids.items() if type(given) is int and given != NO_TOKEN}


def class_names(keys: Keys) -> list[str]:
    """Names of the classes, in the order of their ids.

    Raises:
      UserError: config.json does not name all classes, or gives two the same name.
    """
    named: Any = keys.get("id2label")
    try:
        names = [str(named[str(i)]) for i in range(len(named))]
    except (TypeError, KeyError) as error:
        raise UserError("config.json: id2label does not name the classes 0, 1, ...") from error
    if not names or len(set(names)) < len(names):
        raise UserError("config.json: id2label has no names, or one of them twice")
    return names


def tokenizer_keys(tokenizers: Tokenizers, model: TransformerConfig) -> dict[str, Any]:
    """Keys of config.json for vocabularies, special tokens and labels."""
    keys: dict[str, Any] = {}
    for side in tokenizers.sides.values():
        if isinstance(side, Labels):
            keys["id2label"] = {str(i): name for i, name in enumerate(side.names)}
            keys["label2id"] = {name: i for i, name in enumerate(side.names)}
    if model.architecture != "encoder_decoder":
        special = tokenizers.specials("text")
        keys |= {"vocab_size": model.vocab_size, "pad_token_id": special.pad}
        first = special.first if model.architecture == "decoder_only" else special.encoder.head[0]
        return keys | {"bos_token_id": first, "eos_token_id": special.eos}
    special = tokenizers.specials("target")
    keys |= {"vocab_size": model.source_vocab_size, "decoder_vocab_size": model.target_vocab_size}
    keys |= {"pad_token_id": special.pad, "eos_token_id": special.eos}
    keys |= {"decoder_start_token_id": special.start, "forced_eos_token_id": None}
    if head := special.translation.head:
        keys |= {"bos_token_id": head[0], "forced_bos_token_id": head[0]}
    return keys


def vocabulary_rows(keys: Keys) -> dict[str, int]:
    """Side -> rows of its embedding table; a model with a single table has the side "text"."""
    rows: dict[str, Any] = {"source": keys.get("vocab_size"), "text": keys.get("vocab_size")}
    if rows["text"] is None:
        raise UserError("config.json has no vocab_size")
    rows["target"] = keys.get("decoder_vocab_size") or rows["source"]
    return rows


def decode_fields(directory: Path, has_encoder: bool) -> dict[str, Any]:
    """Config fields of the search, "decode.field" -> value, from generation_config.json.

    Args:
      directory: of the model.
      has_encoder: True if the model has an encoder and a decoder. If so, fields that the file does
        not name get the defaults of transformers.
    """
    path = directory / GENERATION
    keys = read_json(path) if path.exists() else {}
    if keys.get("do_sample"):
        fields = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k"}
        found = {f"decode.{ours}": keys[name] for name, ours in fields.items() if keys.get(name)}
        return {"decode.temperature": 1.0, **found}
    if not has_encoder:
        return {}
    return {
        "decode.beam_size": keys.get("num_beams") or 1,
        "decode.length_penalty": "power",
        "decode.alpha": keys.get("length_penalty", 1.0),
    }
