# SPDX-License-Identifier: Apache-2.0
"""Reads config.json; derives the keys of a run's tokenizers.

Every key of a config.json is read by a part of the import (`ReadKeys` notes which), or is known to
have no effect on what the model computes, or has the value with which it has none. Any other key is
refused (`Family.required`) or warned about by name (`unread_keys`).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.interop.families import FAMILIES, Family
from transformer_jax.interop.families.base import Keys, ReadKeys, require_value
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.ranges import short_repr
from transformer_jax.runtime.files import path_of_published, read_regular
from transformer_jax.tokenization import Labels, Tokenizers

CONFIG = "config.json"

NO_EFFECT = (
    # Metadata.
    *("_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "finetuning_task"),
    *("dtype", "torch_dtype", "tokenizer_class", "model_max_length", "language", "name"),
    # What a call returns, and how fast it is.
    *("output_attentions", "output_hidden_states", "output_past", "return_dict", "use_return_dict"),
    *("use_cache", "torchscript", "use_bfloat16", "gradient_checkpointing", "xla_device"),
    *("chunk_size_feed_forward", "pretraining_tp", "tf_legacy_loss", "use_flash_attn"),
    *("attn_implementation", "_attn_implementation", "_attn_implementation_autoset"),
    *("reorder_and_upcast_attn", "cache_implementation", "save_step"),
    # Initial values of parameters.
    *("initializer_range", "init_std", "initializer_factor"),
    # Follow from other keys, or are of heads and pipelines that are not imported.
    *("is_encoder_decoder", "label2id", "num_labels", "_num_labels", "id2label", "problem_type"),
    *("sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id", "task_specific_params"),
    *("cross_attention_hidden_size", "prefix"),
)
"""Keys of any family that do not change what a model computes, if nothing reads them."""

_NEUTRAL: Keys = {"tie_encoder_decoder": False, "is_decoder": False, "add_cross_attention": False}
"""`Family.neutral` of all families."""


def read_json(path: Path, directory: Path | None = None) -> dict[str, Any]:
    """Reads a JSON object of a model; arguments are those of `path_of_published`.

    Raises:
      UserError: the file is missing, contains something else, or is a link out of the model.
    """
    try:
        content = json.loads(read_regular(path_of_published(path, directory)))
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
        supported = ", ".join(FAMILIES)
        model_type = keys.get("model_type")
        raise UserError(f"config.json: model_type is {model_type!r}; supported are {supported}")
    classes = keys.get("architectures") or [next(iter(family.tasks))]
    if not isinstance(classes, list) or str(classes[0]) not in family.tasks:
        raise UserError(
            f"config.json: architectures is {classes!r}; supported for {family.model_type} are "
            f"{', '.join(family.tasks)}"
        )
    return family.of_class(classes[0]), classes[0]


def unread_keys(family: Family, keys: ReadKeys) -> list[str]:
    """One line for each key of a config.json that nothing has read, and that may change what the
    model computes, or how it is trained."""
    neutral = {**_NEUTRAL, **family.neutral}
    return [
        f"config.json: {key} is {short_repr(value)}; it is not imported"
        for key, value in keys.unread().items()
        if key not in (*NO_EFFECT, *family.no_effect) and neutral.get(key, ...) != value
    ]


def default_ids(family: Family, rows: int) -> Keys:
    """Special tokens that a config.json of the family leaves out, if the vocabulary has them."""
    return {
        key: value
        for key, value in family.defaults.items()
        if key.endswith("_token_id") and value < rows
    }


def special_ids(keys: Keys) -> dict[str, int]:
    """Special tokens of a config.json: role, as in `import_tokenizer` -> id."""
    ids = {}
    for name in ("pad", "bos", "eos", "decoder_start"):
        token = keys.get(f"{name}_token_id")
        # Of several end tokens, the first; `generation_config.end_tokens` has all.
        ids[name] = token[0] if isinstance(token, list) and token else token
    ids["start"] = ids.pop("decoder_start")
    # Older files of Llama have -1 for a token that is missing.
    return {name: token for name, token in ids.items() if type(token) is int and token != -1}


def class_names(keys: Keys) -> list[str]:
    """Names of the classes, in the order of their ids: "LABEL_0", ... if config.json has none.

    Raises:
      UserError: config.json does not name all classes, gives two the same name, or the head does
        not choose among classes (regression, several labels at once).
    """
    require_value(keys, "problem_type", "single_label_classification")
    named: Any = keys.get("id2label")
    if named is None:
        count = keys.get("num_labels", 2)
        named = {str(i): f"LABEL_{i}" for i in range(count if type(count) is int else 0)}
    if isinstance(named, Mapping) and len(named) == 1:
        raise UserError("config.json: id2label has one class (regression); it needs two or more")
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
            keys["num_labels"] = len(side.names)
    if "text" in tokenizers.sides:
        special = tokenizers.specials("text")
        keys |= {"vocab_size": model.vocab_size, "pad_token_id": special.pad}
        if model.architecture == "encoder_decoder":
            keys["decoder_start_token_id"] = special.start
        elif model.architecture == "encoder_only":
            frame = special.encoder
            keys |= {"cls_token_id": frame.head[0], "sep_token_id": frame.between[0]}
        first = special.first if model.architecture == "decoder_only" else special.encoder.head[0]
        return keys | {"bos_token_id": first, "eos_token_id": special.eos}
    special = tokenizers.specials("target")
    keys |= {"vocab_size": model.source_vocab_size, "decoder_vocab_size": model.target_vocab_size}
    keys |= {"pad_token_id": special.pad, "eos_token_id": special.eos}
    keys |= {"decoder_start_token_id": special.start, "forced_eos_token_id": None}
    head = special.translation.head
    if head:
        keys |= {"bos_token_id": head[0], "forced_bos_token_id": head[0]}
    return keys


def vocabulary_rows(keys: Keys) -> dict[str, int]:
    """Side -> rows of its embedding table; a model with a single table has the side "text"."""
    size = keys.get("vocab_size")
    target_size = keys.get("decoder_vocab_size") or size
    if type(size) is not int or type(target_size) is not int:
        raise UserError("config.json has no vocab_size that is a number")
    return {"source": size, "text": size, "target": target_size}
