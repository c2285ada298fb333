# SPDX-License-Identifier: Apache-2.0
"""Evaluation: loss, metrics and outputs of parameters on one split of the data."""

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import batched
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np

from transformer_jax.data.batches.pipeline import EvalBatches, eval_batches
from transformer_jax.data.examples import Corpus
from transformer_jax.errors import UserError
from transformer_jax.metrics import add_sums
from transformer_jax.nn.per_device import use_axes
from transformer_jax.parallel import hosts
from transformer_jax.parallel.sharding import LentMesh, mesh_of, place_like
from transformer_jax.ranges import Range, Steps, check_fields
from transformer_jax.runtime import platform
from transformer_jax.runtime.files import atomic_writer, write_atomic
from transformer_jax.runtime.progress import track
from transformer_jax.tasks.interface import Frozen, Prediction, Task
from transformer_jax.training.step import Sums

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Evaluation during training.

    Attributes:
      every_steps: steps between evaluations on the validation split.
      num_examples: examples whose outputs are scored in each evaluation, always the same ones; the
        loss is computed on the whole split. None: 200 where outputs are decoded, otherwise (labels,
        tags, choices) all.
      each_corpus: also report metrics for each set of `data.name` or each file of the validation
        split, for example "gutenberg/loss".
      best_corpus: corpus whose score selects the best checkpoint, for example "gutenberg" (with
        `each_corpus`); None: the whole split.
      patience: stop after this many evaluations without a better score (the score that selects the
        best checkpoint); None: train to the last step. With it, every evaluated step is saved.
      command: external program, with arguments, that also scores the outputs, for example a learned
        metric (`scoring.command`).

    Raises:
      ValueError: a value is out of range, or `best_corpus` is set without `each_corpus`.
    """

    every_steps: Steps = 1000
    num_examples: Annotated[int, Range(1, 10**9)] | None = None
    each_corpus: bool = False
    best_corpus: str | None = None
    patience: Steps | None = None
    command: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.best_corpus is not None and not self.each_corpus:
            raise ValueError("best_corpus needs the metrics of each_corpus: set that to true")


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Evaluates parameters on the examples of one split.

    Attributes:
      num_decoded: number of examples to decode, spread evenly over all; None: all of them.
    """

    task: Task
    examples: Corpus
    decode: Any
    rows: int
    num_decoded: int | None = None

    def __call__(self, params: Any, frozen: Frozen) -> tuple[dict[str, Any], list[Prediction]]:
        """Computes metrics of outputs and loss, and the outputs of `decoded_examples`."""
        scores, outputs = self.task.evaluate(params, self.decoded_examples, self.decode)
        count = len(outputs or self.examples)
        metrics = {**scores, **self.loss_metrics(params, frozen), "num_examples": count}
        if count < len(self.examples):
            metrics["num_all_examples"] = len(self.examples)
        return metrics, outputs

    def check(self) -> None:
        """Checks the examples and the decoding options without running the model.

        Raises:
          UserError: there is no example, or none fits a row; an example has a label that training
            never saw; or the task rejects the decoding options.
        """
        _ = self.batches  # made here, because that reads every example
        check_search = getattr(self.task, "check_search", None)
        if check_search:
            check_search(self.decoded_examples, self.decode)

    @functools.cached_property
    def decoded_examples(self) -> Corpus:
        count = min(self.num_decoded or len(self.examples), len(self.examples))
        indices = np.linspace(0, len(self.examples) - 1, count).astype(int)
        return [self.examples[i] for i in indices]

    def loss_metrics(self, params: Any, frozen: Frozen) -> dict[str, Any]:
        """Computes the task's metrics of the loss over all examples, without decoding."""
        sums: dict[str, float] = {}
        mesh = mesh_of(params)
        lent = None if mesh is None else LentMesh(mesh)
        with platform.sharded_over(mesh.size if mesh else 1), use_axes(lent):
            # `track` counts what is in each group: here groups of one batch.
            for (batch,) in track(batched(self.batches, 1), len(self.batches), "batch"):
                batch_sums = self.batch_sums(params, place_like(params, batch), frozen)
                sums = add_sums(sums, hosts.to_host(batch_sums))
        metrics = self.task.metrics(sums, self.examples)
        if self.batches.overlong:
            metrics["overlong"] = self.batches.overlong
            metrics["num_loss_examples"] = len(self.examples) - self.batches.overlong
        return metrics

    @functools.cached_property
    def batches(self) -> EvalBatches:
        """The packed examples."""
        prepared = self.task.prepare(self.examples, training=False)
        lengths = self.task.lengths
        batches = eval_batches(prepared, self.task.preprocess, lengths=lengths, rows=self.rows)
        if batches.overlong:
            message = "the loss leaves out %d of %d examples, which are longer than a row"
            logger.warning(message, batches.overlong, len(self.examples))
        return batches

    @functools.cached_property
    def batch_sums(self) -> Callable[[Any, Any, Frozen], Sums]:
        """Compiled function: parameters, batch, frozen trees -> sums of the loss."""

        def sums_of(params: Any, batch: Any, frozen: Frozen) -> Sums:
            loss, _, sums = self.task.loss(params, batch, None, frozen)
            return {"loss": loss, **sums}

        return jax.jit(sums_of, compiler_options=platform.compiler_options())


def add_command_scores(
    command: str | None, metrics: dict[str, Any], examples: Corpus, outputs: Sequence[Prediction]
) -> dict[str, Any]:
    """Adds the scores of an external command (`scoring.command`) to the metrics.

    Process 0 runs the command. If it fails, a warning is logged and the metrics are unchanged.

    Raises:
      UserError: the task has no outputs to score.
    """
    if command is None:
        return metrics
    from transformer_jax.scoring.command import scores_by_command

    if not outputs:
        raise UserError("command: this run's task writes no outputs for it to score")

    def score() -> dict[str, float]:
        try:
            scores = scores_by_command(command, list(_records(examples, outputs)))
        except ValueError as error:
            logger.warning("no scores by the command: %s", error)
            return {}
        taken = ", ".join(sorted(scores.keys() & metrics.keys()))
        if taken:
            logger.warning("left out %s of the command: names of the run's own metrics", taken)
        return scores

    return hosts.run_on_primary(score) | metrics


def _records(examples: Corpus, outputs: Sequence[Prediction]) -> Iterator[dict[str, Any]]:
    for example, output in zip(examples, outputs, strict=True):
        yield {**example, "output": output.text, "score": output.score}


def write_predictions(
    path: Path, examples: Corpus, outputs: Sequence[Prediction], made_by: Mapping[str, Any]
) -> None:
    """Writes examples with their outputs and scores, if there are any, one JSON object a line, and
    beside them, in a file of JSON, what made them."""
    if not outputs:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".json")
    beside.unlink(missing_ok=True)  # if this is interrupted, it would tell of other outputs
    with atomic_writer(path) as file:
        for record in _records(examples, outputs):
            line = json.dumps(record, ensure_ascii=False) + "\n"
            # A lone surrogate, which JSON can represent, is escaped as in JSON: \ud800.
            file.write(line.encode(errors="backslashreplace"))
    write_atomic(beside, json.dumps(made_by, indent=1, default=str) + "\n")
