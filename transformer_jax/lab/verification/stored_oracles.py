# SPDX-License-Identifier: Apache-2.0
"""Oracles of what is stored: exported weights, and the user's data set."""

import hashlib
import json
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.data.batches.pipeline import TrainBatches
from transformer_jax.data.sources import find_sets, open_split
from transformer_jax.interop.config_json import tokenizer_keys
from transformer_jax.interop.family_match import match_family
from transformer_jax.interop.weights import (
    WEIGHTS,
    Tensors,
    match_tensors,
    save_tensors,
    to_tensors,
)
from transformer_jax.lab.verification.outcomes import (
    BITS,
    Comparison,
    DoesNotApplyError,
    compare_places,
    compare_trees,
)
from transformer_jax.lab.verification.subject import LABELS, Subject
from transformer_jax.models.classifier import body_config
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.runs import build
from transformer_jax.runs.prepare import build_tokenizers
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.user_modules import user_components
from transformer_jax.runs.workdir import TOKENIZER
from transformer_jax.tasks.interface import Task
from transformer_jax.tokenization import DEFAULT_SPECIALS, Labels, Tokenizers

_LENGTHS = (
    *("data__max_length", "data__max_source_length", "data__max_target_length"),
    "model__max_length",
)
_LENGTH = 128  # tokens of a row
_EXAMPLES = 200  # compared, from the first to the last of the set
_BATCHES = 3  # before and after the iterator is restored


def exported(subject: Subject) -> Comparison:
    """Weights that are exported and imported again are the same.

    Raises:
      UserError: no published family has this model.
    """
    leaves = {path: np.asarray(leaf) for path, leaf in named_leaves(subject.params).items()}
    kind = build.task_kind(subject.settings)
    text: Any = types.SimpleNamespace(specials=DEFAULT_SPECIALS)
    labels = Labels(tuple(f"label {i}" for i in range(LABELS)))
    sides = {side: labels if side in kind.labels else text for side in kind.sides}
    model = body_config(subject.task.model)
    task = subject.settings.task.name
    if isinstance(subject.task.model, DecoderOnly):
        task = "language_modeling"
    match = match_family(model, leaves, task, tokenizer_keys(Tokenizers(sides), model))
    with tempfile.TemporaryDirectory() as folder:
        tensors = to_tensors(match.family, match.model, match.leaves)
        save_tensors(tensors, Path(folder) / WEIGHTS)
        read = match_tensors(match.family, match.model, match.leaves, Tensors(Path(folder)))
        imported = {path: read.read(path, leaf.shape) for path, leaf in match.leaves.items()}
    return compare_trees(imported, dict(match.leaves), BITS)


def data(subject: Subject) -> Comparison:
    """A data set opens again with the same examples, and batches continue where they stopped.

    Reads the data and trains its tokenizers, if the set or the task is the user's.
    """
    fields = {field for field, _ in user_components(subject.settings)}
    settings = subject.but(**dict.fromkeys(_LENGTHS, _LENGTH)).settings
    if not fields & {"data.name", "task.name"}:
        raise DoesNotApplyError("neither data.name nor task.name is a component of yours")
    downloads = any(
        source.reads is None or "data.dir" in source.reads
        for source in find_sets(settings.data.name)
    )
    if "data.name" not in fields and settings.data.dir is None and downloads:
        raise DoesNotApplyError(f"data.name {settings.data.name} is read from data.dir; set it")
    first = open_split(settings.data, "train")
    again = open_split(settings.data, "train")
    chosen = np.linspace(0, len(first) - 1, min(len(first), _EXAMPLES)).astype(int)
    examples = [_digest(first[int(i)]) for i in chosen]
    # Backwards, so that examples that depend on those read before differ.
    backwards = [_digest(again[int(i)]) for i in chosen[::-1]]
    opened = compare_places(
        np.stack(backwards[::-1]), np.stack(examples), lambda i: f"example {chosen[i]}", BITS
    )
    if not opened.is_equal:
        return opened
    with tempfile.TemporaryDirectory() as folder:
        tokenizers = build_tokenizers(settings, Path(folder) / TOKENIZER, first)
        task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
        return _continued_batches(settings, task)


def _continued_batches(settings: Settings, task: Task) -> Comparison:
    """Compares batches read in one go with batches whose iterator was restored in the middle."""

    def open_batches() -> TrainBatches:
        return build.batches_of(settings, task, open_split(settings.data, "train"), rows=2)

    def read(batches: TrainBatches, count: int) -> list[np.ndarray]:
        return [np.hstack([*next(batches).values()]) for _ in range(count)]

    whole = open_batches()
    started = open_batches()
    continued = open_batches()
    try:
        expected = read(whole, 2 * _BATCHES)
        restored = read(started, _BATCHES)
        # The state passes through JSON, as in a checkpoint.
        continued.set_state(json.loads(json.dumps(started.get_state())))
        restored += read(continued, _BATCHES)
    finally:
        for batches in (whole, started, continued):
            batches.close()
    where = f"restored before {_BATCHES}"
    return compare_places(
        np.stack(restored), np.stack(expected), lambda i: f"batch {i}, {where}", BITS
    )


def _digest(example: Mapping[str, Any]) -> np.ndarray:
    text = repr(sorted(example.items())).encode()
    return np.frombuffer(hashlib.sha256(text).digest(), np.uint8)
