# SPDX-License-Identifier: Apache-2.0
"""Exports a run as a directory that transformers or CTranslate2 can load."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.checkpoints.store import open_snapshot
from transformer_jax.conversations import MODEL, chat_template
from transformer_jax.errors import UserError, install_hint, user_errors
from transformer_jax.interop import ctranslate2_spec, family_match
from transformer_jax.interop.config_json import CONFIG, tokenizer_keys
from transformer_jax.interop.family_match import Leaves
from transformer_jax.interop.generation_config import GENERATION, generation_keys, search_warnings
from transformer_jax.interop.hub import HUB
from transformer_jax.interop.importing import LICENSE, SOURCE
from transformer_jax.interop.sentence_modules import sentence_files
from transformer_jax.interop.weights import WEIGHTS, save_tensors, to_tensors
from transformer_jax.models.classifier import body_config
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.patches import PatchedModel
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import encoding_class
from transformer_jax.runs.run import Run
from transformer_jax.runs.workdir import CHECKPOINTS
from transformer_jax.runtime.files import atomic_folder, require_empty
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.instruction import Instruction
from transformer_jax.tokenization import Tokenizers
from transformer_jax.tokenization.published_formats import CHAT_TEMPLATE
from transformer_jax.tokenization.transformers_export import json_file, transformers_files

logger = logging.getLogger(__name__)


def export_run(run: Run, directory: Path, format: str, quantization: str | None = None) -> None:
    """Exports a run for another library.

    Args:
      directory: new or empty.
      format: "hf" for `from_pretrained` of transformers, or "ctranslate2" for
        `ctranslate2.Translator` and `Generator`.
      quantization: of CTranslate2's matrices, "float32" or "int8"; None: float32.

    Raises:
      UserError: the run is patched, the directory is not empty, or the format does not support the
        model (the message names the unsupported option).
    """
    if quantization and format != "ctranslate2":
        raise UserError("--quantization goes with --format=ctranslate2; leave it out")
    if isinstance(run.model, PatchedModel):
        raise UserError("export: a patched run cannot be exported; export the run without patches")
    require_empty(directory, "--to")
    model = body_config(run.model)
    leaves = {path: np.asarray(leaf) for path, leaf in named_leaves(run.params).items()}
    if format == "hf":
        _to_transformers(run, model, leaves, directory)
    else:
        _to_ctranslate2(run, model, leaves, directory, quantization)


def _to_transformers(run: Run, model: TransformerConfig, leaves: Leaves, directory: Path) -> None:
    model = dataclasses.replace(model, max_length=_context_length(run, model))
    task = _task_of_class(run)
    sides = TASKS[task].sides  # a run may have others, of the run that it started from
    vocabularies = run.tokenizer.sides.items()
    tokenizers = Tokenizers({side: entry for side, entry in vocabularies if side in sides})
    keys = tokenizer_keys(tokenizers, model)
    match = family_match.match_family(model, leaves, task, keys)
    with user_errors("--format=hf"):
        files = transformers_files(tokenizers, model.architecture)
    if isinstance(run.task, Instruction) and run.settings.task.template != MODEL:
        template = chat_template(run.task.template, run.task.chat_tokenizer.adds_first_token)
        files[CHAT_TEMPLATE] = template.encode()
    files |= sentence_files(run.settings.task, model.d_model, run.settings.data.max_length)
    files |= {
        GENERATION: json_file(_generation_config(run, keys, model.max_length)),
        "README.md": _model_card(run, match.class_name).encode(),
        CONFIG: json_file({"architectures": [match.class_name], "dtype": "float32", **match.keys}),
    }
    tensors = to_tensors(match.family, match.model, match.leaves)
    with atomic_folder(directory, "--to") as folder:
        save_tensors(tensors, folder / WEIGHTS)
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
    logger.info("%s: exported as a %s", directory, match.class_name)
    for warning in family_match.approximation_warnings(model, match.model):
        logger.warning(
            "the exported %s computes slightly different results: %s", match.class_name, warning
        )
    for warning in search_warnings(run.settings.decode, _has_target(run)):
        logger.warning("the exported %s is searched differently: %s", match.class_name, warning)


def _task_of_class(run: Run) -> str:
    """The task whose class of transformers the export is for, whatever task trained the model."""
    if isinstance(run.model, DecoderOnly):
        return "language_modeling"
    if run.settings.task.name == "denoising":
        return "seq2seq" if "target" in run.tokenizer.sides else "masked_lm"
    return run.settings.task.name


def _context_length(run: Run, model: TransformerConfig) -> int:
    """Context length of config.json: that of a table of positions; without a table the longest row
    of the task, or the length of a published model, which an import keeps, if that is longer."""
    positions = encoding_class(model)
    if positions.num_positions(model) == model.max_length:  # a table has no further rows
        return model.max_length
    return max(model.max_length, *run.task.lengths.values())


def _generation_config(run: Run, keys: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """Content of generation_config.json: the run's search, as far as transformers supports it."""
    ids = {name: value for name, value in keys.items() if name.endswith("_token_id")}
    if isinstance(run.model, DecoderOnly):
        ends = [ids["eos_token_id"], *run.tokenizer.specials("text").ends]
        if isinstance(run.task, Instruction):
            ends = sorted({*ends, run.task.chat_tokenizer.answer_end})
        ids["eos_token_id"] = ends if len(ends) > 1 else ends[0]
    has_encoder = _has_target(run)
    if not (has_encoder or isinstance(run.model, DecoderOnly)):
        return ids
    return {**ids, **generation_keys(run.settings.decode, has_encoder, longest)}


def _has_target(run: Run) -> bool:
    """Returns True if the run writes a target, which a decoder with an encoder searches."""
    return "target" in TASKS[_task_of_class(run)].sides


def _model_card(run: Run, class_name: str) -> str:
    """Content of README.md: how to use the model, and what is known of its origin."""
    provenance = open_snapshot(run.workdir / CHECKPOINTS, items=()).provenance
    source = provenance.get(SOURCE, "")
    license_ = provenance.get(LICENSE)
    header = {"library_name": "transformers", "license": license_}
    if source.startswith(HUB):
        header["base_model"] = source.removeprefix(HUB).partition("@")[0]
    listed = "".join(f"{name}: {value}\n" for name, value in header.items() if value)
    origin = f"made from {source}, " if source.startswith(HUB) else ""
    terms = ""
    if not license_:
        terms = "\nIts licence is not known: add `license:` above before you share it.\n"
    return f"""\
---
{listed}---

# {class_name} of transformer_jax

Exported from a run ({origin}task `{run.settings.task.name}`, step {run.step}) in float32.
{terms}
With transformers, where DIR is this folder:

    from transformers import AutoTokenizer, {class_name}
    tokenizer = AutoTokenizer.from_pretrained("DIR")
    model = {class_name}.from_pretrained("DIR")

With transformer_jax:

    python -m transformer_jax import --from=DIR --workdir=runs/model
    python -m transformer_jax predict --workdir=runs/model < lines
"""


def _to_ctranslate2(
    run: Run, model: TransformerConfig, leaves: Leaves, directory: Path, quantization: str | None
) -> None:
    try:
        import ctranslate2  # noqa: F401 (takes a second)
    except ImportError as error:
        raise UserError(
            f"--format=ctranslate2 needs the library ctranslate2: {install_hint('export')}"
        ) from error
    if model.architecture == "encoder_decoder" and not _has_target(run):
        raise UserError(
            f"--format=ctranslate2: the task {run.settings.task.name} writes no text, and "
            "CTranslate2 runs encoder-decoders that do; use --format=hf"
        )
    model, leaves = family_match.remove_vocab_padding(model, leaves)
    leaves = {path: np.array(leaf) for path, leaf in leaves.items()}  # quantized in place
    positions = max(1024, *run.task.lengths.values())
    spec = ctranslate2_spec.build_specification(model, leaves, positions)
    _add_vocabularies(spec, model, run.tokenizer)
    spec.validate()
    spec.optimize(quantization="int8" if quantization == "int8" else None)
    with atomic_folder(directory, "--to") as folder:
        spec.save(str(folder))
    logger.info("%s: exported for CTranslate2, %s", directory, quantization or "float32")


def _add_vocabularies(spec: Any, model: TransformerConfig, tokenizers: Tokenizers) -> None:
    """Adds the vocabularies and special tokens to a specification."""
    spec.config.layer_norm_epsilon = model.norm_epsilon
    is_decoder_only = model.architecture == "decoder_only"
    tokenizer = tokenizers.text("text" if is_decoder_only else "target")
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    specials = tokenizer.specials
    tokens = {"eos_token": specials.eos, "unk_token": specials.unk}
    if is_decoder_only:
        spec.register_vocabulary(pieces)
        tokens["bos_token"] = specials.first
    else:
        source = tokenizers.text("source")
        spec.register_source_vocabulary(source.pieces(range(source.vocab_size)))
        spec.register_target_vocabulary(pieces)
        spec.config.add_source_eos = source.specials.translation.tail == (source.specials.eos,)
        tokens |= dict.fromkeys(("bos_token", "decoder_start_token"), specials.start)
    for name, token in tokens.items():
        setattr(spec.config, name, "" if token is None else pieces[token])
