"""Training a config in a workdir."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.checkpoints.warm_start import warm_start
from transformer_jax.data.batches.pipeline import TrainBatches, train_batches
from transformer_jax.data.sources import open_split
from transformer_jax.logs.records import recorded_splits, records_of
from transformer_jax.logs.run_log import NoLog, RunLog
from transformer_jax.nn.low_rank import merged
from transformer_jax.parallel import hosts
from transformer_jax.parallel.agreement import Statement
from transformer_jax.parallel.engines import create_state
from transformer_jax.parallel.interface import Engine
from transformer_jax.runs import build, provenance
from transformer_jax.runs.adapting import base_params, of_base
from transformer_jax.runs.config import (
    Settings,
    check_trainable,
)
from transformer_jax.runs.fit import fit
from transformer_jax.runs.modules import Modules, load_modules
from transformer_jax.runs.prepare import prepare
from transformer_jax.runs.reference import with_reference
from transformer_jax.runs.run import Run
from transformer_jax.runs.trainable import InitState, Scores
from transformer_jax.runs.validation import chosen_by, score_of, validation
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    METRICS,
    TOKENIZER,
    workdir_path,
)
from transformer_jax.runs.writable import Place, writable
from transformer_jax.runtime.compilation_cache import use_compilation_cache
from transformer_jax.runtime.host_memory import keep_freed_memory
from transformer_jax.tasks.interface import Task
from transformer_jax.tokenization import load_tokenizers
from transformer_jax.training.clock import Clock
from transformer_jax.training.state import TrainState


def train(config: ConfigDict, workdir: str | Path, modules: Modules = ()) -> Run:
    """Trains a config in a workdir, or goes on from its last checkpoint.

    In a job of many processes each calls this, with a workdir that they share, or at an address.

    Args:
      config: of the run.
      workdir: where the run is kept; made if absent.
      modules: the user's own, with components that the config names (`runs.modules`).

    Raises:
      UserError: the config, its data or a module cannot be used, the workdir holds another run, or
        the loss is no longer finite.
      Stopped: a SIGTERM came; the state is saved, and the same call goes on.
    """
    clock = Clock()
    keep_freed_memory()
    use_compilation_cache()
    with writable(workdir) as place:
        return _train(config, place, modules, clock)


def _train(config: ConfigDict, place: Place, modules: Modules, clock: Clock) -> Run:
    workdir = place.folder

    def opened() -> tuple[Any, Statement]:
        named, settings = load_modules(modules, workdir), check_trainable(config)
        examples = open_split(settings.data, "train")
        rests_on = provenance.of_training(examples)
        return (named, settings, examples, rests_on), rests_on | _origin(settings)

    (named, settings, examples, rests_on), _ = hosts.in_agreement(opened)
    checkpoints = place.checkpoints(settings.checkpoint)
    checkpoints.provenance |= rests_on | of_base(settings)
    with place.locked(), checkpoints:
        hosts.from_primary(lambda: prepare(config, workdir, checkpoints, examples, named))
        place.bring(TOKENIZER)
        tokenizers = load_tokenizers(workdir / TOKENIZER)
        checkpoints.provenance |= provenance.of_tokenizers(tokenizers)
        task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
        task = with_reference(task, settings, workdir)
        state = fit(OneRun(settings, workdir, task, examples), checkpoints, clock)
    return Run(config, workdir, task, merged(state.model_params), int(state.step))


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
        return hosts.from_primary(lambda: split in recorded_splits(path, step))

    def scores(self, step: int) -> list[float]:
        """As `Trainable.scores`; the first process has read them for all."""
        path, name = self.workdir / METRICS, chosen_by(self.settings, self.task)
        found = hosts.from_primary(lambda: list(records_of(path, "valid", step)))
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
    return state.started_from(warm_start(state.params, workdir_path(settings.train.init_from)))
