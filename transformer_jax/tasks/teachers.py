# SPDX-License-Identifier: Apache-2.0
"""Teachers of a training run (`losses.Distillation`): a model in each step, or stored predictions.

B batch, T slots of a row.
"""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.order import IndexedRng
from transformer_jax.data.batches.packing import padded_batch
from transformer_jax.data.batches.windows import Windows
from transformer_jax.data.examples import Corpora, Features, Parsed
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import PaddedBatch
from transformer_jax.losses import TopPredictions
from transformer_jax.models import apply_model
from transformer_jax.nn import auxiliary
from transformer_jax.parallel.sharding import round_up_rows
from transformer_jax.runtime import platform
from transformer_jax.tasks.interface import Batch, Params, Task

ROWS = "teacher_rows"
"""Feature with the row of each target in stored predictions."""

_TARGET = "target"
"""Feature whose slots are the predictions of a row."""


@dataclasses.dataclass(frozen=True)
class ModelTeacher:
    """Model of another run, which predicts in each step.

    Attributes:
      task: task of the run with the model of the teacher.
    """

    task: Task

    def init(self, rng: jax.Array) -> Params:
        """Returns a tree of the shapes of the tree `frozen["teacher"]`."""
        return self.task.init(rng)

    def predictions(self, params: Params, batch: Batch, inputs: Any, method: str) -> Any:
        """Returns what `Distillation.of_taught` compares with, of the inputs and the method of the
        student's model that predicts."""
        with auxiliary.outside_training():
            return apply_model(self.task.model, params, *inputs, method=method)


@dataclasses.dataclass(frozen=True)
class StoredTeacher:
    """Most likely tokens of a teacher at each target of the training data.

    It takes the place of the teacher's model, and of the snapshot of its parameters.

    Attributes:
      top: tokens and log-probabilities, [P, k] each, of all targets of one item after another.
      starts: int64 [D], row of the first target of each item.
      id: of the checkpoint that computed them.
    """

    top: TopPredictions
    starts: np.ndarray
    id: str

    def init(self, rng: jax.Array) -> Params:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.top)

    def params(self, abstract: Any) -> Any:
        """The predictions as arrays with these shardings."""
        return jax.tree.map(
            lambda like, array: jax.make_array_from_callback(
                array.shape, like.sharding, array.__getitem__
            ),
            abstract,
            self.top,
        )

    def predictions(self, params: Params, batch: Batch, inputs: Any, method: str) -> TopPredictions:
        top: TopPredictions = jax.tree.map(lambda table: table[batch[ROWS]], params)
        return top

    def lengths(self, task: Task) -> dict[str, int]:
        """Slots of a row for each feature, with `ROWS`."""
        return {**task.lengths, ROWS: task.lengths[_TARGET]}

    def numbered(self, items: Sequence[Any]) -> Sequence[tuple[Any, int]]:
        """The items with their first rows."""
        parse = functools.partial(_numbered, items, self.starts)
        if not isinstance(items, Corpora):
            return Parsed(range(len(items)), parse)
        parts = (Parsed(range(*ends), parse) for ends in itertools.pairwise(items.starts))
        return Corpora(tuple(parts), items.weights)


Teacher = ModelTeacher | StoredTeacher
"""Gives the predictions that a student is compared with."""


def _numbered(items: Sequence[Any], starts: np.ndarray, index: int) -> tuple[Any, int]:
    return items[index], int(starts[index])


def preprocess_numbered(
    task: Task, numbered: tuple[Any, int], rng: np.random.Generator
) -> Features:
    """Features of a numbered item, with `ROWS`."""
    item, start = numbered
    features = task.preprocess(item, rng)
    rows = np.arange(start, start + len(features[_TARGET]), dtype=np.int32)
    return {**features, ROWS: rows}


class TargetRows(NamedTuple):
    """Row of each target of the training data in stored predictions.

    Attributes:
      starts: int64 [D], row of the first target of each item.
      sha256: of the features of all items, which the predictions belong to.
    """

    starts: np.ndarray
    sha256: str


def target_rows(task: Task, items: Sequence[Any]) -> TargetRows:
    """Numbers the targets of prepared training data.

    Raises:
      UserError: the task has no feature "target" that is the same in every epoch; or its items are
        windows that overlap, many times the data.
    """
    has_no_rows = UserError(
        "config.train.distillation.top_k stores predictions for each token of the feature 'target',"
        " which this task has not, or draws at random; leave it out: the teacher then predicts in "
        "every step"
    )
    if _TARGET not in task.lengths:
        raise has_no_rows
    if isinstance(items, Windows) and items.stride < items.length:
        raise UserError(
            "config.train.distillation.top_k: in training, windows of running text begin at every "
            "token (data.packing 'together'), too many predictions to store; set data.packing to "
            "'apart', or leave top_k out"
        )

    digest = hashlib.sha256()
    sizes = []
    rng = IndexedRng(0)
    for index, item in enumerate(items):
        features = task.preprocess(item, rng.at(index))
        if rng.has_drawn:
            raise has_no_rows
        for name, values in features.items():
            array = np.asarray(values)
            digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
        sizes.append(len(features[_TARGET]))
    return TargetRows(np.cumsum(sizes) - sizes, digest.hexdigest())


def predict_top(
    task: Task, params: Params, items: Sequence[Any], rows: int, count: int, temperature: float
) -> TopPredictions:
    """Computes a teacher's most likely tokens at each target of the training data.

    Args:
      task: task with the model of the teacher.
      items: prepared training data, numbered by `target_rows`.
      rows: rows of a batch.
      count: k, tokens of each target.
      temperature: T of the softmax.

    Returns:
      The attribute `top` of a `StoredTeacher`.

    Raises:
      UserError: the teacher predicts NaN.
    """
    supervised: Any = task  # with the optional method `supervised`

    @functools.partial(jax.jit, compiler_options=platform.compiler_options())
    def top(params: Params, batch: Mapping[str, Any]) -> TopPredictions:
        logits = apply_model(supervised.model, params, *supervised.supervised(batch).inputs)
        return TopPredictions.of_logits(logits, min(count, logits.shape[-1]), temperature)

    filler: Any = dict.fromkeys(task.lengths, ())

    def padded(group: Sequence[Features]) -> dict[str, np.ndarray]:
        cut = [{name: f[name][:length] for name, length in task.lengths.items()} for f in group]
        return padded_batch(cut, task.lengths)

    # No seed matters: `target_rows` refuses a task that draws.
    parsed = Parsed(items, lambda item: task.preprocess(item, np.random.default_rng(0)))
    batch = PaddedBatch(filler, padded)
    predictions = []  # tokens and log-probabilities of each item
    for features, of_item in batch.run_all(top, params, parsed, round_up_rows(rows, params)):
        size = len(features[_TARGET])
        end = min(size, task.lengths[_TARGET])
        # Rows for all targets, also of an overlong item, which is never trained on.
        pad = [(0, size - end), (0, 0)]
        predictions.append([np.pad(x[:end], pad) for x in of_item])
    arrays: Any = (np.concatenate(parts) for parts in zip(*predictions, strict=True))
    stored = TopPredictions(*arrays)
    if np.isnan(stored.log_probs).any():
        raise UserError(
            "config.train.distillation.teacher: the teacher predicts NaN; choose another run"
        )
    return stored
