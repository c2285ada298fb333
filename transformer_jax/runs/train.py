"""Training a config in a workdir."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.checkpoints.warm_start import warm_start
from transformer_jax.data.batches.pipeline import TrainBatches, train_batches
from transformer_jax.data.examples import Corpus
from transformer_jax.data.sources import open_corpora, open_split
from transformer_jax.errors import UserError
from transformer_jax.logs.records import recorded_splits, records_of
from transformer_jax.logs.run_log import NoLog, RunLog
from transformer_jax.nn.lora import merge_adapters
from transformer_jax.parallel import hosts
from transformer_jax.parallel.engines import Engine, create_state
from transformer_jax.parallel.hosts import Fingerprint
from transformer_jax.runs import build, provenance
from transformer_jax.runs.base_run import base_params, of_base, with_reference
from transformer_jax.runs.config import check_trainable
from transformer_jax.runs.fit import InitState, Scores, fit
from transformer_jax.runs.prepare import prepare
from transformer_jax.runs.run import Run
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.user_modules import Modules, load_modules
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    METRICS,
    PREDICTIONS,
    TOKENIZER,
    WorkdirHandle,
    workdir_path,
    writable,
)
from transformer_jax.runtime.platform import use_compilation_cache
from transformer_jax.runtime.startup import keep_freed_memory
from transformer_jax.tasks.interface import Task
from transformer_jax.tokenization import load_tokenizers
from transformer_jax.training.evaluation import Evaluator, with_command, write_predictions
from transformer_jax.training.loop import GoodputTimer
from transformer_jax.training.state import TrainState

# FOLDED runs.validation: The scores of the validation split while a run trains.


def validation(settings: Settings, task: Task, mesh: Mesh) -> Callable[[int, Any, Path], Scores]:
    """(step, params, workdir) -> scores; the outputs are kept in the workdir.

    Raises:
      UserError: the validation split cannot be read, or not be evaluated, whatever the parameters;
        or `eval.best_corpus` is none of its corpora.
    """
    greedy = dataclasses.replace(settings.decode, beam_size=1, num_outputs=1)
    count = settings.eval.num_examples

    def evaluator_of(name: str, open_examples: Callable[[], Corpus]) -> Evaluator:
        examples = provenance.agreed_data(name, open_examples)
        made = build.build_evaluator(settings, task, examples, greedy, mesh, count)
        try:
            made.check()
        except UserError as error:
            raise UserError(f"the validation split cannot be evaluated: {error}") from error
        return made

    evaluator = evaluator_of("valid", lambda: open_split(settings.data, "valid"))
    corpora = open_corpora(settings.data, "valid") if settings.eval.each_corpus else {}
    best = settings.eval.best_corpus
    if best is not None and best not in corpora:
        raise UserError(f"eval.best_corpus is {best!r}, which is none of {', '.join(corpora)}")
    parts = {
        name: evaluator_of(f"valid/{name}", lambda corpus=corpus: corpus)  # type: ignore[misc]
        for name, corpus in corpora.items()
    }

    def evaluate(step: int, params: Any, workdir: Path) -> Scores:
        metrics, outputs = evaluator(params)
        metrics = with_command(settings.eval.command, metrics, evaluator.decoded, outputs)
        path = workdir / PREDICTIONS / f"valid-{step}.jsonl"
        hosts.run_on_primary(lambda: write_predictions(path, evaluator.decoded, outputs))
        for name, part in parts.items():
            metrics |= {f"{name}/{metric}": value for metric, value in part(params)[0].items()}
        return metrics, score_of(metrics, chosen_by(settings, task))

    return evaluate


def chosen_by(settings: Settings, task: Task) -> str:
    """What the best checkpoint has most of: a metric of the validation records, or -metric."""
    corpus, metric = settings.eval.best_corpus, task.best_by.removeprefix("-")
    if corpus is None:
        return task.best_by
    return task.best_by.replace(metric, f"{corpus}/{metric}")


def score_of(metrics: Mapping[str, Any], best_by: str) -> float:
    """What the best checkpoint has most of: a metric, or -metric; NaN where a record has none."""
    name = best_by.removeprefix("-")
    value = metrics.get(name)
    return math.nan if value is None else value if name == best_by else -value


def train(config: ConfigDict, workdir: str | Path, modules: Modules = ()) -> Run:
    """Trains a config in a workdir, or goes on from its last checkpoint.

    In a job of many processes each calls this, with a workdir that they share, or at an address.

    Args:
      config: of the run.
      workdir: where the run is kept; made if absent.
      modules: the user's own, with components that the config names (`runs.user_modules`).

    Raises:
      UserError: the config, its data or a module cannot be used, the workdir holds another run, or
        the loss is no longer finite.
      Stopped: a SIGTERM came; the state is saved, and the same call goes on.
    """
    clock = GoodputTimer()
    keep_freed_memory()
    use_compilation_cache()
    with writable(workdir) as place:
        return _train(config, place, modules, clock)


def _train(config: ConfigDict, place: WorkdirHandle, modules: Modules, clock: GoodputTimer) -> Run:
    workdir = place.folder

    def opened() -> tuple[Any, Fingerprint]:
        named, settings = load_modules(modules, workdir), check_trainable(config)
        examples = open_split(settings.data, "train")
        rests_on = provenance.of_training(examples)
        return (named, settings, examples, rests_on), rests_on | _origin(settings)

    (named, settings, examples, rests_on), _ = hosts.require_agreement(opened)
    checkpoints = place.checkpoints(settings.checkpoint)
    checkpoints.provenance |= rests_on | of_base(settings)
    with place.locked(), checkpoints:
        hosts.run_on_primary(lambda: prepare(config, workdir, checkpoints, examples, named))
        place.bring(TOKENIZER)
        tokenizers = load_tokenizers(workdir / TOKENIZER)
        checkpoints.provenance |= provenance.of_tokenizers(tokenizers)
        task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
        task = with_reference(task, settings, workdir)
        state = fit(OneRun(settings, workdir, task, examples), checkpoints, clock)
    return Run(config, workdir, task, merge_adapters(state.model_params), int(state.step))


def _origin(settings: Settings) -> dict[str, str]:
    """The checkpoint to start from, in which the processes of a job must agree."""
    if not settings.train.init_from:
        return {}
    folders = step_folders(workdir_path(settings.train.init_from) / CHECKPOINTS)
    return {"the run of train.init_from": provenance.of_checkpoints(folders)}


@dataclasses.dataclass(frozen=True)
class OneRun:
    """One run, on all devices of the job; a `Trainable`."""

    settings: Settings
    workdir: Path
    task: Task
    examples: Sequence[Any]

    @cached_property
    def engine(self) -> Engine:
        """The one that the config asks for."""
        return build.build_engine(self.settings)

    def abstract_state(self, init_state: InitState) -> TrainState:
        """As `Trainable.abstract_state`."""
        return build.abstract_state(self.settings, init_state, self.engine.mesh)

    def first_state(self, init_state: InitState, abstract: TrainState) -> TrainState:
        """As `Trainable.first_state`."""
        state = create_state(init_state, self.settings.seed, abstract)
        if abstract.base is not None:
            return state.replace(base=self.base(abstract.base))
        return started(state, self.settings)

    def base(self, abstract: Any) -> Any:
        """As `Trainable.base`."""
        return None if abstract is None else base_params(self.settings, abstract)

    def batches(self, rows: int) -> TrainBatches:
        """As `Trainable.batches`; this process's rows."""
        shard = (jax.process_index(), jax.process_count())
        return batches_of(self.settings, self.task, self.examples, rows, shard)

    def log(self, start: int) -> RunLog | NoLog:
        """As `Trainable.log`; of many processes, the first one has it."""
        if not hosts.is_primary():
            return NoLog()
        steps, project = self.settings.train.num_steps, self.settings.logging.wandb
        return RunLog(self.workdir, start_step=start, num_steps=steps, wandb=project)

    def has_record(self, step: int, split: str) -> bool:
        """As `Trainable.has_record`."""
        path = self.workdir / METRICS
        return hosts.run_on_primary(lambda: split in recorded_splits(path, step))

    def scores(self, step: int) -> list[float]:
        """As `Trainable.scores`; the first process has read them for all."""
        path, name = self.workdir / METRICS, chosen_by(self.settings, self.task)
        found = hosts.run_on_primary(lambda: list(records_of(path, "valid", step)))
        return [score_of(metrics, name) for metrics in found]

    def learning_rate(self, schedule: Callable[[int], Any]) -> Callable[[int], Any]:
        """The schedule's own."""
        return schedule

    def validation(self) -> Callable[[int, Any], Scores]:
        """As `Trainable.validation`."""
        evaluate = validation(self.settings, self.task, self.engine.mesh)
        return lambda step, params: evaluate(step, params, self.workdir)


def batches_of(
    settings: Settings,
    task: Task,
    examples: Sequence[Any],
    rows: int,
    shard: tuple[int, int] = (0, 1),
    replicas: int = 1,
) -> TrainBatches:
    """The training data in the order of the settings' seed; `shard` is (process, of how many), and
    `replicas` so many as share the worker processes."""
    return train_batches(
        task.prepare(examples, training=True),
        task.preprocess,
        lengths=task.lengths,
        rows=rows,
        seed=settings.order_seed,
        shard=shard,
        num_workers=math.ceil(settings.data.num_workers / replicas),
    )


def started(state: TrainState, settings: Settings) -> TrainState:
    """A fresh state with the parameters of the run that `train.init_from` names, if any."""
    if not settings.train.init_from:
        return state
    return state.with_params(warm_start(state.params, workdir_path(settings.train.init_from)))
