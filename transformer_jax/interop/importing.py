# SPDX-License-Identifier: Apache-2.0
"""Imports a published model: writes its options, tokenizers and weights to a workdir."""

import contextlib
import logging
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.checkpoints.step_folder import fill, named_leaves
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.checkpoints.warm_start import log_names
from transformer_jax.errors import UserError, user_errors
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.interop import config_json
from transformer_jax.interop.families import Family
from transformer_jax.interop.families.base import ReadKeys, with_defaults
from transformer_jax.interop.generation_config import Generation, end_tokens, read_generation
from transformer_jax.interop.hub import fetch_model
from transformer_jax.interop.sentence_modules import SentenceModules, read_sentence_modules
from transformer_jax.interop.weights import MatchedTensors, Tensors, match_tensors
from transformer_jax.models.classifier import body_config
from transformer_jax.nn.positions import POSITIONS
from transformer_jax.runs import build, provenance
from transformer_jax.runs.config import nested, resolve, save_json
from transformer_jax.runs.settings import Origin, Settings
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    CONFIG,
    TOKENIZER,
    lock_workdir,
    open_for_writing,
)
from transformer_jax.runtime import files
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.interface import Task
from transformer_jax.tokenization import Labels, Tokenizers, store_tokenizers
from transformer_jax.tokenization.published import PublishedTokenizer, import_tokenizer

logger = logging.getLogger(__name__)

SOURCE = "published model"
"""Provenance of an imported run: where the model is from."""
LICENSE = "license"
"""Provenance of an imported run: the model's licence, if it names one."""

_LICENSE = re.compile(r"\A---\n(?:(?!---).*\n)*?license: *([\w.-]+)")
_MAX_LENGTH = 1024  # tokens of a row, for models whose positions allow more


def import_model(source: str, workdir: str | Path, allow_nonfinite: bool = False) -> None:
    """Imports a published model as a run. Executes nothing of it, and checks it before writing.

    Args:
      source: a directory written by transformers, or its address, or hf:OWNER/NAME[@REVISION].
      workdir: of the run; new or empty. It is written completely or not at all.
      allow_nonfinite: accept NaN and infinity in the weights.

    Raises:
      UserError: the model is of no supported family, is damaged or incomplete, has an unsupported
        option (the message names it), or the workdir is not empty.
    """
    with open_for_writing(workdir) as handle:
        files.require_empty(handle.folder, "--workdir")
        _import(source, handle.folder, allow_nonfinite)


def _import(source: str, workdir: Path, allow_nonfinite: bool) -> None:
    directory = fetch_model(source)
    keys = ReadKeys(config_json.read_json(directory / config_json.CONFIG))
    family, class_name = config_json.find_family(keys)
    tensors = Tensors(directory)
    # A classifier or tagger, whose task has labels, has no `generate`.
    generates = not TASKS[family.tasks[class_name]].labels
    generation = read_generation(directory, keys, family.architecture if generates else None)
    fields = {**_config_fields(source, family, class_name, keys), **generation.fields}
    is_masked_lm = fields["task.name"] == "masked_lm"
    sentences = read_sentence_modules(directory) if is_masked_lm else SentenceModules()
    if sentences.fields:
        limit = min(sentences.fields.get("data.max_length", _MAX_LENGTH), fields["data.max_length"])
        fields |= {**sentences.fields, "data.max_length": limit}
    with user_errors(f"{directory / config_json.CONFIG} cannot be a run", kinds=UserError):
        settings = resolve(nested(fields), {}, (), Origin("published model", "its options"))
    texts, labels = _vocabularies(directory, settings, family, keys, generation)
    sides = {side: PublishedTokenizer(content) for side, content in texts.items()}
    tokenizers = Tokenizers({**sides, **labels})
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    # Shapes are enough to match the tensors.
    abstract = jax.eval_shape(task.init, jax.random.key(0))
    matched = match_tensors(family, body_config(task.model), named_leaves(abstract), tensors)
    with files.atomic_folder(workdir, "--workdir") as folder, lock_workdir(folder):
        tokenizers = store_tokenizers("file", texts, folder / TOKENIZER, labels)
        with Checkpoints(folder / CHECKPOINTS, settings.checkpoint) as checkpoints:
            checkpoints.provenance |= provenance.tokenizer_provenance(tokenizers)
            checkpoints.provenance[SOURCE] = str(source)
            checkpoints.provenance |= _license(directory)
            checkpoints.save_params(0, _params(task, matched, abstract, allow_nonfinite))
        save_json(settings, folder / CONFIG)
    logger.info("%s: %d arrays of a %s loaded", source, len(matched.matches), class_name)
    log_names("newly initialized", matched.new)
    log_names("ignored tensors, as models here have no such part", matched.ignored)
    unread = config_json.unread_keys(family, keys)
    for warning in (*unread, *generation.warnings, *sentences.warnings):
        logger.warning("%s", warning)


def _license(directory: Path) -> dict[str, str]:
    """The licence that the model's card names, as provenance; empty if there is none."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        card = files.read_regular(files.path_of_published(directory / "README.md")).decode()
        match = _LICENSE.match(card.replace("\r\n", "\n"))
        if match:
            return {LICENSE: match[1]}
    return {}


def _config_fields(source: str, family: Family, class_name: str, keys: ReadKeys) -> dict[str, Any]:
    """Fields of the run's config: "section.field" -> value.

    Texts may be as long as positions reach, but at most _MAX_LENGTH. If the number of positions is
    limited, sources are shortened so that a translation may be longer than its source.
    """
    options = family.options(keys)
    task = family.tasks[class_name]
    fields = {f"model.{field}": value for field, value in options.items()}
    fields |= {"task.name": task, "tokenizer.kind": "file", "tokenizer.path": source}
    reach = int(options.get("max_length", _MAX_LENGTH))
    longest = min(reach, _MAX_LENGTH)
    if "text" in TASKS[task].texts:
        return {**fields, "data.max_length": longest}
    extra = DecodeConfig.max_extra_length
    if "model.max_length" in POSITIONS[options["positions"]].reads:
        extra = min(extra, reach // 2)
        longest = max(1, min(longest, reach - extra - 1))  # 1: the token before a target
    return {
        **fields,
        "data.max_source_length": longest,
        "data.max_target_length": longest,
        "decode.max_extra_length": extra,
    }


def _vocabularies(
    directory: Path, settings: Settings, family: Family, keys: ReadKeys, generation: Generation
) -> tuple[dict[str, bytes], dict[str, Labels]]:
    """Side -> stored tokenizer of the model, and side -> its labels."""
    kind = TASKS[settings.task.name]
    rows = config_json.vocabulary_rows(keys)
    texts = {}
    for side in kind.texts:
        defaults = config_json.default_ids(family, rows[side])
        ids: dict[str, Any] = config_json.special_ids(with_defaults(keys, defaults))
        if side == "target":
            # In transformers those of generation_config.json take precedence.
            of_search = {"start": generation.start, "head": generation.head}
            ids |= {role: tokens for role, tokens in of_search.items() if tokens is not None}
            if generation.ends:
                ids["eos"] = generation.ends[0]
        if family.architecture == "decoder_only":
            ids["ends"] = dict.fromkeys((*end_tokens(keys), *generation.ends))
        texts[side] = import_tokenizer(directory, side, ids, rows[side])
    class_keys = with_defaults(keys, family.defaults)
    labels = {side: Labels(tuple(config_json.class_names(class_keys))) for side in kind.labels}
    return texts, labels


def _params(task: Task, matched: MatchedTensors, abstract: Any, allow_nonfinite: bool) -> Any:
    """Parameters of the run. A head that the published model does not have is newly initialized.

    They are JAX arrays: a checkpoint that is being written would hold a copy of any other arrays.
    """
    initial = named_leaves(jax.jit(task.init)(jax.random.key(0))) if matched.new else {}
    arrays = {}
    for path, leaf in named_leaves(abstract).items():
        if path in matched.new:
            arrays[path] = initial[path]
        else:
            arrays[path] = jnp.asarray(matched.read(path, leaf.shape, allow_nonfinite))
    return fill(abstract, arrays)
