# SPDX-License-Identifier: Apache-2.0
"""Trains a config in a workdir."""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_jax.data.batches.pipeline import TrainBatches
from transformer_jax.data.examples import Corpus
from transformer_jax.data.sources import open_corpora, open_split
from transformer_jax.errors import UserError
from transformer_jax.logs.records import read_records, recorded_splits, with_losses
from transformer_jax.logs.run_log import Console, NoLog, RunLog, four_digits
from transformer_jax.nn.lora import merge_adapters
from transformer_jax.parallel import hosts
from transformer_jax.parallel.engines import Engine, create_state
from transformer_jax.parallel.sharding import process_part
from transformer_jax.runs import build
from transformer_jax.runs.fit import InitState, Scores, fit
from transformer_jax.runs.frozen import with_stored_scores
from transformer_jax.runs.prepare import open_training, prepare
from transformer_jax.runs.provenance import open_same_data
from transformer_jax.runs.run import Run
from transformer_jax.runs.settings import Settings, errors_of
from transformer_jax.runs.user_modules import Modules
from transformer_jax.runs.workdir import (
    METRICS,
    PREDICTIONS,
    TOKENIZER,
    open_for_writing,
    workdir_path,
)
from transformer_jax.runtime import platform
from transformer_jax.runtime.progress import shown
from transformer_jax.runtime.startup import keep_freed_memory
from transformer_jax.tasks.interface import Task
from transformer_jax.training.diagnostics import Diagnostics
from transformer_jax.training.evaluation import Evaluator, add_command_scores, write_predictions
from transformer_jax.training.loop import GoodputTimer
from transformer_jax.training.state import FROZEN, TrainState

logger = logging.getLogger(__name__)

_DECODED_EXAMPLES = 200  # of a validation split, if `eval.num_examples` is None


def train(
    config: Settings | ConfigDict,
    workdir: str | Path,
    modules: Modules = (),
    *,
    until: int | None = None,
    progress: bool = True,
) -> Run:
    """Trains a config in a workdir, or resumes from its latest checkpoint.

    In a job of many processes each calls this, with the same workdir, shared or at an address.

    Args:
      workdir: the workdir of the run; created if it does not exist.
      modules: the user's modules, with components that the config names (`runs.user_modules`).
      until: the step to pause after. The same call with a later step, or none, resumes there; if
        the run is evaluated at this step anyway, it ends as a run that was not paused.
      progress: show the progress on stderr or, in a notebook, in one line (`runtime.progress`).

    Raises:
      UserError: the config, its data or a module cannot be used, the workdir holds another run, or
        the loss is no longer finite.
      Stopped: a SIGTERM came; the state is saved, and the same call continues.
    """
    clock = GoodputTimer()
    keep_freed_memory()
    platform.use_compilation_cache()
    with shown(progress and hosts.is_primary()), open_for_writing(workdir) as handle:
        folder = handle.folder
        training = open_training([config], modules, folder, handle.checkpoints)
        settings = training.settings
        checkpoints = training.checkpoints
        same_bits = platform.reproducible(settings.train.reproducible)
        with handle.locked(), checkpoints, same_bits:
            hosts.run_on_primary(lambda: prepare(training, folder))
            handle.copy_from_primary(TOKENIZER)
            tokenizers = training.open_tokenizers(folder)
            teacher, snapshots = training.open_teacher(tokenizers, folder)
            task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers, teacher)
            task = with_stored_scores(task, settings, folder)
            run = SingleRun(settings, folder, task, training.examples, snapshots)
            state = fit(run, checkpoints, clock, until)
            hosts.run_on_primary(lambda: _log_best(settings, task, folder, workdir))
        return Run(settings, folder, task, merge_adapters(state.model_params), int(state.step))


def _log_best(settings: Settings, task: Task, folder: Path, workdir: str | Path) -> None:
    """Logs the best validation score and where the run is."""
    name = selection_metric(settings, task)
    records = list(_validations(folder, settings, settings.train.num_steps))
    finite = [record for record in records if math.isfinite(score_of(record, name))]
    if finite:
        record = max(finite, key=lambda record: score_of(record, name))
        score = four_digits(abs(score_of(record, name)))
        best = f"{name.removeprefix('-')} {score} at step {record['step']}"
        if "num_all_examples" in record and not name.endswith("loss"):
            best += f", on {record['num_examples']:,} of {record['num_all_examples']:,} examples"
        logger.info("best %s; the run is in %s", best, workdir)


@dataclasses.dataclass(frozen=True)
class SingleRun:
    """One run, on all devices of the job; a `Trainable`.

    Attributes:
      settings, workdir, task, examples: of the run.
      snapshots: the checkpoints of the frozen parameters, by name.
    """

    settings: Settings
    workdir: Path
    task: Task
    examples: Sequence[Any]
    snapshots: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @cached_property
    def engine(self) -> Engine:
        return build.build_engine(self.settings)

    def abstract_state(self, init_state: InitState) -> TrainState:
        return build.abstract_state(self.settings, init_state, self.engine.mesh)

    def first_state(self, init_state: InitState, abstract: TrainState) -> TrainState:
        init_from = self.settings.train.init_from
        start = None
        if init_from and "base" not in self.snapshots:  # adapters start from their own values
            from transformer_jax.checkpoints.warm_start import WarmStart

            start = WarmStart(abstract.params, workdir_path(init_from))

        def is_loaded(path: str) -> bool:
            part, _, name = path.partition("/")
            warm = start is not None and part in ("params", "live") and name in start.replaced
            return warm or part == FROZEN

        state = create_state(init_state, self.settings.seed, abstract, is_loaded)
        return state.with_params(start.load(state.params)) if start else state

    def frozen(self, abstract: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.snapshots[name].params(shapes) for name, shapes in abstract.items()}

    def batches(self, rows: int) -> TrainBatches:
        with errors_of("parallel"):
            part = process_part(self.engine.mesh)
        return build.batches_of(self.settings, self.task, self.examples, rows, part)

    def log(self, start: int) -> RunLog | NoLog:
        if not hosts.is_primary():
            return NoLog()
        console = console_of(self.settings, self.task, start)
        config = self.settings.logging
        return RunLog(self.workdir, start_step=start, config=config, console=console)

    def has_record(self, step: int, split: str) -> bool:
        path = self.workdir / METRICS
        return hosts.run_on_primary(lambda: split in recorded_splits(path, step))

    def scores(self, step: int) -> list[float]:
        """Validation scores so far. Process 0 reads them and broadcasts."""
        return hosts.run_on_primary(
            lambda: recorded_scores(self.workdir, self.settings, self.task, step)
        )

    def learning_rate(self, schedule: Callable[[int], Any]) -> Callable[[int], Any]:
        return schedule

    def diagnostics(self) -> Diagnostics:
        return build.build_diagnostics(self.settings, self.task, self.engine)

    def validation(self) -> Callable[[int, TrainState], Scores]:
        evaluate = validation(self.settings, self.task, self.engine.mesh)
        return lambda step, state: evaluate(step, state, self.workdir)


def recorded_scores(workdir: Path, settings: Settings, task: Task, step: int) -> list[float]:
    """Validation scores that a run recorded up to a step."""
    name = selection_metric(settings, task)
    return [score_of(record, name) for record in _validations(workdir, settings, step)]


def _validations(workdir: Path, settings: Settings, step: int) -> Iterator[dict[str, Any]]:
    """Records of the validation split up to a step."""
    train = dataclasses.asdict(settings.train)
    for record in read_records(workdir / METRICS, "valid", step):
        yield with_losses(record, train)


def warm_started(state: TrainState, settings: Settings) -> TrainState:
    """A fresh state with the parameters of the run of `train.init_from`, if there is one."""
    if not settings.train.init_from:
        return state
    from transformer_jax.checkpoints.warm_start import warm_start

    return state.with_params(warm_start(state.params, workdir_path(settings.train.init_from)))


def validation(
    settings: Settings, task: Task, mesh: Mesh
) -> Callable[[int, TrainState, Path], Scores]:
    """A function (step, state, workdir) -> scores; it writes the outputs to the workdir.

    Raises:
      UserError: the validation split cannot be read or evaluated, whatever the parameters, or
        `eval.best_corpus` is not one of its corpora.
    """
    greedy = dataclasses.replace(settings.decode, beam_size=1, num_outputs=1)
    count = settings.eval.num_examples
    if count is None and getattr(task, "decodes", True):
        count = _DECODED_EXAMPLES

    def evaluator_of(name: str, open_examples: Callable[[], Corpus]) -> Evaluator:
        examples = open_same_data(name, open_examples)
        evaluator = build.build_evaluator(settings, task, examples, greedy, mesh, count)
        try:
            evaluator.check()
        except UserError as error:
            raise UserError(f"the validation split cannot be evaluated: {error}") from error
        return evaluator

    evaluator = evaluator_of("valid", lambda: open_split(settings.data, "valid"))
    corpora = open_corpora(settings.data, "valid") if settings.eval.each_corpus else {}
    best = settings.eval.best_corpus
    if best is not None and best not in corpora:
        raise UserError(f"eval.best_corpus is {best!r}, which is none of {', '.join(corpora)}")
    corpus_evaluators = {
        name: evaluator_of(f"valid/{name}", lambda corpus=corpus: corpus)  # type: ignore[misc]
        for name, corpus in corpora.items()
    }

    def evaluate(step: int, state: TrainState, workdir: Path) -> Scores:
        params = state.model_params
        metrics, outputs = evaluator(params, state.frozen)
        metrics = add_command_scores(
            settings.eval.command, metrics, evaluator.decoded_examples, outputs
        )
        path = workdir / PREDICTIONS / f"valid-{step}.jsonl"
        hosts.run_on_primary(lambda: write_predictions(path, evaluator.decoded_examples, outputs))
        for name, evaluate_corpus in corpus_evaluators.items():
            corpus_metrics, _ = evaluate_corpus(params, state.frozen)
            metrics |= {f"{name}/{metric}": value for metric, value in corpus_metrics.items()}
        return metrics, score_of(metrics, selection_metric(settings, task))

    return evaluate


def console_of(settings: Settings, task: Task, start: int) -> Console:
    """The progress of a run, or of replicas, that trains from step `start` on."""
    metric = selection_metric(settings, task).removeprefix("-")
    return Console(start, settings.train.num_steps, metric, settings.logging.console)


def selection_metric(settings: Settings, task: Task) -> str:
    """The metric that selects the best checkpoint, with a minus sign if lower is better."""
    corpus = settings.eval.best_corpus
    if corpus is None:
        return task.best_by
    metric = task.best_by.removeprefix("-")
    return task.best_by.replace(metric, f"{corpus}/{metric}")


def score_of(metrics: Mapping[str, Any], selected_by: str) -> float:
    """The score of validation metrics, higher is better; NaN if the metric is missing."""
    name = selected_by.removeprefix("-")
    value = metrics.get(name)
    if value is None:
        return math.nan
    return value if name == selected_by else -value
