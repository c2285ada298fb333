"""A published model as a run: its options, its tokenizers and its weights in a workdir."""

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.buckets import copies
from transformer_jax.buckets.bucket import is_address
from transformer_jax.checkpoints.step_folder import fill, named_leaves
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.checkpoints.warm_start import log_names
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.interop import config_json
from transformer_jax.interop.families import Family
from transformer_jax.interop.families.base import Keys
from transformer_jax.interop.weights import Found, Tensors, find
from transformer_jax.models.classifier import body_config
from transformer_jax.runs import build, provenance
from transformer_jax.runs.config import config_of, read_settings, save_json
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    CONFIG,
    TOKENIZER,
    lock_workdir,
    open_for_writing,
)
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.interface import Task
from transformer_jax.tokenization import (
    Labels,
    PublishedTokenizer,
    Tokenizers,
    import_tokenizer,
    store_tokenizers,
)

# FOLDED interop.hub: Where a model is taken from: a directory, or a repository of the Hugging Face
# hub.


HUB = "hf:"
_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_WANTED = ["*.json", "*.safetensors", "*.model", "*.spm", "*.txt"]


def fetched(source: str) -> Path:
    """The directory that holds a model; what the hub, or a bucket, has of it is brought here.

    Args:
      source: a directory or its address, or hf:OWNER/NAME or hf:OWNER/NAME@REVISION.

    Raises:
      UserError: there is no such directory, or the hub does not give it.
    """
    if is_address(source):
        return copies.fetch_folder(source)
    if not source.startswith(HUB):
        if not Path(source).is_dir():
            raise UserError(f"--from: {source} is no directory (of the hub: hf:OWNER/NAME)")
        return Path(source)
    found = _REPOSITORY.fullmatch(source.removeprefix(HUB))
    if found is None:
        raise UserError(
            f"--from: {source} is not of the form hf:OWNER/NAME or hf:OWNER/NAME@REVISION"
        )
    from huggingface_hub import snapshot_download  # takes a second
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(found[1], revision=found[2], allow_patterns=_WANTED))
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"--from: {source} cannot be fetched ({reason}); is there a network, and is the name "
            "right? A directory that was downloaded elsewhere will do"
        ) from error


logger = logging.getLogger(__name__)

_LONGEST_ROW = 1024  # tokens, where positions reach further


def import_model(source: str, workdir: str | Path) -> None:
    """Makes a run of a published model. Nothing of the model is executed, and nothing is written
    before all of it has been looked at.

    Args:
      source: a directory as transformers writes it, or hf:OWNER/NAME[@REVISION].
      workdir: where the run is to be; new or empty.

    Raises:
      UserError: the model is none of `families`, it is damaged or incomplete, one of its options
        has no counterpart here (it is named), or the workdir holds something.
    """
    with open_for_writing(workdir) as handle:
        _import(source, handle.folder)


def _import(source: str, workdir: Path) -> None:
    if workdir.exists() and any(os.scandir(workdir)):
        raise UserError(f"{workdir} is not empty; choose a new or an empty folder as --workdir")
    directory = fetched(source)
    keys = config_json.read_json(directory / config_json.CONFIG)
    family, name = config_json.family_of(keys)
    tensors = Tensors(directory)
    chosen = _chosen(source, directory, family, name, keys)
    try:
        config = config_of(chosen, "its options")
        settings = read_settings(config)
    except UserError as error:
        raise UserError(f"{directory / config_json.CONFIG} cannot be a run: {error}") from error
    texts, labels = _vocabularies(directory, settings, keys)
    sides = {side: PublishedTokenizer(content) for side, content in texts.items()}
    tokenizers = Tokenizers({**sides, **labels})
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    abstract = jax.eval_shape(task.init, jax.random.key(0))
    found = find(family, body_config(task.model), named_leaves(abstract), tensors)
    with lock_workdir(workdir):
        tokenizers = store_tokenizers("file", texts, workdir / TOKENIZER, labels)
        with Checkpoints(workdir / CHECKPOINTS, settings.checkpoint) as checkpoints:
            checkpoints.provenance |= provenance.tokenizer_provenance(tokenizers)
            checkpoints.provenance["published model"] = str(source)
            checkpoints.save_params(0, _params(task, found, abstract))
        save_json(config, workdir / CONFIG)
    logger.info("%s: %d arrays of a %s loaded", source, len(found.places), name)
    log_names("new, with fresh values", found.new)
    log_names("left out, as models here have no such part", found.left_out)


def _chosen(source: str, directory: Path, family: Family, name: str, keys: Keys) -> dict[str, Any]:
    """The fields of the run's config, {"section.field": value}."""
    options = family.options(keys)
    chosen = {f"model.{field}": value for field, value in options.items()}
    chosen |= {"task.name": family.tasks[name], "tokenizer.kind": "file", "tokenizer.path": source}
    chosen |= _rows(family, options, keys)
    translates = family.architecture == "encoder_decoder"
    return {**chosen, **config_json.search_fields(directory, translates)}


def _rows(family: Family, options: Mapping[str, Any], keys: Keys) -> dict[str, int]:
    """How long texts may be: as far as positions reach, but for what a batch has no room for. Where
    they end, there is room for a translation that is longer than its source."""
    reach = int(options.get("max_length", keys.get("max_position_embeddings", _LONGEST_ROW)))
    longest = min(reach, _LONGEST_ROW)
    if family.architecture != "encoder_decoder":
        return {"data.max_length": longest}
    extra = DecodeConfig.max_extra_length
    if "max_length" in options:
        extra = min(extra, reach // 2)
        longest = max(1, min(longest, reach - extra - 1))  # 1: the token that heads a target
    return {
        "data.max_source_length": longest,
        "data.max_target_length": longest,
        "decode.max_extra_length": extra,
    }


def _vocabularies(
    directory: Path, settings: Settings, keys: Keys
) -> tuple[dict[str, bytes], dict[str, Labels]]:
    """By side: what stores the tokenizers of a published model, and its labels."""
    kind = TASKS[settings.task.name]
    ids, rows = config_json.special_ids(keys), config_json.vocabulary_rows(keys)
    texts = {side: import_tokenizer(directory, side, ids, rows[side]) for side in kind.texts}
    return texts, {side: Labels(tuple(config_json.labels_of(keys))) for side in kind.labels}


def _params(task: Task, found: Found, abstract: Any) -> Any:
    """The run's parameters; those of a head that the published model has not are fresh.

    As arrays of JAX: of others, a checkpoint in the making would hold a copy of all.
    """
    fresh = named_leaves(task.init(jax.random.key(0))) if found.new else {}
    arrays = {
        path: fresh[path] if path in found.new else jnp.asarray(found.read(path, leaf.shape))
        for path, leaf in named_leaves(abstract).items()
    }
    return fill(abstract, arrays)
