# SPDX-License-Identifier: Apache-2.0
"""Batches for `run.model.apply`, and the examples of a split, for a notebook."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.data.batches.pipeline import eval_batches
from transformer_jax.data.examples import Corpus, Example, RandomAccess
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.models import input_names
from transformer_jax.models.encoder_decoder import Seq2Seq
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.summary import Summarized
from transformer_jax.tasks.interface import Supervised, ability

_SHOWN = 5


@dataclasses.dataclass(frozen=True, repr=False)
class Examples(Summarized, RandomAccess[Example]):
    """The examples of a split: a sequence of dicts of texts, read when they are requested."""

    corpus: Corpus

    def __len__(self) -> int:
        return len(self.corpus)

    def item(self, index: int) -> Example:
        return self.corpus[index]

    def summary(self) -> Mapping[str, Any]:
        """The number of examples, and the first ones."""
        first = {str(i): " | ".join(self[i].values()) for i in range(min(_SHOWN, len(self)))}
        return {"examples": len(self), **first}


def read_data(run: Any, split: str = "train") -> Examples:
    """The examples of a split of the data, such as {"source", "target"}.

    Args:
      run: a config, or a `Run`.

    Raises:
      UserError: there is no such split, or its files cannot be read.
    """
    settings = read_settings(run) if isinstance(run, ConfigDict) else run.settings
    return Examples(open_split(settings.data, split))


def batch_of(
    run: Any, sources: Sequence[str], targets: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Implements `Run.batch`."""
    if isinstance(run.model, Seq2Seq) and targets is None:
        raise UserError("batch: the model reads pairs; give targets too")
    if not sources:
        raise UserError("batch: there is no text")
    if targets and len(targets) != len(sources):
        raise UserError(f"batch: {len(sources)} sources but {len(targets)} targets; give pairs")
    if targets:
        examples = [run.model_inputs(*pair) for pair in zip(sources, targets, strict=True)]
    else:
        examples = [run.model_inputs(source) for source in sources]
    rows = [example.inputs for example in examples]
    arguments = zip(*rows, strict=True)  # one array [1, T] a row for each argument of the model
    names = input_names(run.model)
    return {name: _stack(arrays) for name, arrays in zip(names, arguments, strict=False)}


def _stack(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows [1, T] of unequal lengths as one array; zeros, which are padding, fill it."""
    width = max(row.shape[1] for row in rows)
    return np.concatenate([np.pad(row, ((0, 0), (0, width - row.shape[1]))) for row in rows])


def batches_of_split(run: Any, split: str) -> Iterator[Supervised]:
    """Implements `Run.batches`."""
    settings = run.settings
    task = run.task
    supervised = ability(task, "supervised")
    examples = open_split(settings.data, split)
    rows = build.batch_rows(settings, task)
    if split == "train":
        packed: Any = build.batches_of(settings, task, examples, rows)
    else:
        prepared = task.prepare(examples, training=False)
        packed = eval_batches(prepared, task.preprocess, lengths=task.lengths, rows=rows)
    names = input_names(run.model)
    for batch in packed:
        inputs, labels, counted = supervised(batch)
        yield Supervised(dict(zip(names, inputs, strict=False)), labels, counted)
