# SPDX-License-Identifier: Apache-2.0
"""Replicas: seeds of one config, or configs that differ in numbers, trained in one program.

They need one process and one compilation.
"""

import contextlib
import dataclasses
import functools
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.checkpoints.step_folder import DATA, step_folders
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.data.batches.pipeline import StackedBatches, TrainBatches, replica_state
from transformer_jax.errors import UserError
from transformer_jax.logs.records import recorded_splits
from transformer_jax.logs.run_log import ReplicaLogs
from transformer_jax.nn.lora import merge_adapters
from transformer_jax.parallel.engines import Engine, create_state
from transformer_jax.parallel.replicas import ReplicaEngine, make_replica_engine
from transformer_jax.parallel.scan_engine import ScanEngine
from transformer_jax.parallel.sharding import make_mesh, replicated
from transformer_jax.runs import build
from transformer_jax.runs.config import check_same_run, load_json, resolve, save_json
from transformer_jax.runs.fit import InitState, Scores, fit
from transformer_jax.runs.frozen import with_stored_scores
from transformer_jax.runs.prepare import open_training, prepare
from transformer_jax.runs.replica_numbers import apart_reason, check_alike, traced_numbers
from transformer_jax.runs.run import Run
from transformer_jax.runs.settings import COMMAND, Settings
from transformer_jax.runs.train import console_of, recorded_scores, validation, warm_started
from transformer_jax.runs.user_modules import Modules, record_modules
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    REFERENCE,
    TOGETHER,
    TOKENIZER,
    lock_workdir,
    require_own_folder,
    restore_records,
    workdir_path,
    workdir_within,
)
from transformer_jax.runtime.files import remove
from transformer_jax.runtime.platform import use_compilation_cache
from transformer_jax.runtime.startup import keep_freed_memory
from transformer_jax.tasks.interface import Task
from transformer_jax.tokenization import copy_tokenizers
from transformer_jax.training.diagnostics import Diagnostics
from transformer_jax.training.loop import GoodputTimer
from transformer_jax.training.state import FROZEN, TrainState


def seed_configs(settings: Settings | ConfigDict, count: int) -> dict[str, Settings]:
    """The settings with `count` seeds from their own upwards, {"seed_N": settings}."""
    seeds = range(settings.seed, settings.seed + count)
    return {f"seed_{seed}": resolve(settings, {"seed": seed}, (), COMMAND) for seed in seeds}


def train_replicas(
    configs: Mapping[str, Settings | ConfigDict],
    workdir: str | Path,
    modules: Modules = (),
    until: int | None = None,
    folders: Mapping[str, Path] | None = None,
) -> dict[str, Run]:
    """Trains replicas in one program, or resumes from their latest joint checkpoint.

    Each run equals the run that `train` makes of its config. If one diverges, the others continue.

    Args:
      configs: by name; they differ only in `seed` and the fields of `replica_numbers.NUMBERS`.
      workdir: the folder with the joint checkpoint.
      modules: the user's modules, with components that the configs name (`runs.user_modules`).
      until: the step to pause after, as of `train`.
      folders: the workdir of each replica; None: folders of their names in `workdir`.

    Returns:
      The runs, by name.

    Raises:
      UserError: a config, its data or a module cannot be used, the configs differ in more or have
        an option for which seeds must train apart, the workdir holds other runs, or no replica's
        loss is finite any longer.
      Stopped: a SIGTERM came; the joint checkpoint is saved, and the same call continues.
    """
    clock = GoodputTimer()
    keep_freed_memory()
    use_compilation_cache()
    workdir = workdir_path(workdir)
    common = workdir_within(workdir, TOGETHER)
    folders = folders or {name: workdir_within(workdir, name) for name in configs}
    members = {name: resolve(config, {}, modules, COMMAND) for name, config in configs.items()}
    check_alike(members)
    if reason := apart_reason(next(iter(members.values()))):
        raise UserError(f"{reason}: train one seed after another, each in a workdir of its own")
    training = open_training(
        list(members.values()),
        modules,
        common,
        lambda section: Checkpoints(common / CHECKPOINTS, section),
    )
    members = dict(zip(members, training.members, strict=True))
    checkpoints = training.checkpoints
    _check_same_replicas(members, folders, workdir, checkpoints)
    with _locked([common, *folders.values()]), checkpoints:
        is_resumed = checkpoints.latest_step() is not None
        prepare(training, common)
        for name, settings in members.items():
            if is_resumed:
                restore_records(folders[name])
            remove(folders[name] / TOKENIZER)
            copy_tokenizers(common / TOKENIZER, folders[name] / TOKENIZER)
            save_json(settings, folders[name] / CONFIG)
            record_modules(folders[name], settings, training.modules)
        tokenizers = training.open_tokenizers(common)
        teacher, snapshots = training.open_teacher(tokenizers, common)
        build_own = functools.cache(
            lambda one: build.build_task(one, build.vocab_sizes(tokenizers), tokenizers, teacher)
        )
        # Tasks are equal but for the numbers of model and loss.
        first = training.settings
        alike = [
            dataclasses.replace(first, model=settings.model, train=settings.train)
            for settings in training.members
        ]
        tasks = [with_stored_scores(build_own(settings), settings, common) for settings in alike]
        replicas = Replicas(
            training.members, list(folders.values()), tasks, workdir, training.examples, snapshots
        )
        state = fit(replicas, checkpoints, clock, until)
        replicas.save_each(state, checkpoints)
    runs = {}
    for i, (name, settings) in enumerate(members.items()):
        own = replicas.replica(state.evaluated, i)
        folder = folders[name]
        if (common / REFERENCE).is_dir():
            shutil.copytree(common / REFERENCE, folder / REFERENCE, dirs_exist_ok=True)
        task = with_stored_scores(replicas.tasks[i], settings, folder)
        runs[name] = Run(settings, folder, task, merge_adapters(own.model_params), int(own.step))
    return runs


@contextlib.contextmanager
def _locked(folders: Sequence[Path]) -> Iterator[None]:
    """Locks several workdirs for writing."""
    with contextlib.ExitStack() as locks:
        for folder in folders:
            require_own_folder(folder)  # all of them, before the first is marked
        for folder in folders:
            locks.enter_context(lock_workdir(folder))
        yield


def _check_same_replicas(
    configs: Mapping[str, Settings],
    folders: Mapping[str, Path],
    workdir: Path,
    checkpoints: Checkpoints,
) -> None:
    """Raises UserError if the folder holds other replicas, or a run trained by itself."""
    if checkpoints.latest_step() is None:
        alone = [workdir] if (workdir / CONFIG).exists() else []
        alone += [one for one in folders.values() if step_folders(one / CHECKPOINTS)]
        if alone:
            raise UserError(
                f"{alone[0]} holds a run that was trained by itself; choose another --workdir"
            )
        return
    found = {path.parent.name for path in workdir.glob(f"*/{CONFIG}")} - {TOGETHER}
    if found and found != set(configs):
        raise UserError(
            f"{workdir} holds {', '.join(sorted(found))} trained together, not "
            f"{', '.join(configs)}; choose another --workdir or the same number of seeds"
        )
    for name, settings in configs.items():
        check_same_run(settings, load_json(folders[name] / CONFIG), folders[name])


@dataclasses.dataclass(frozen=True)
class Replicas:
    """Replicas of one run; a `Trainable`.

    Attributes:
      members: the settings of each replica.
      folders: their workdirs.
      tasks: their tasks, the same one if their models and losses have the same numbers.
      workdir, examples: of all.
      snapshots: the checkpoints of the frozen parameters, which all share, by name.
    """

    members: Sequence[Settings]
    folders: Sequence[Path]
    tasks: Sequence[Task]
    workdir: Path
    examples: Sequence[Any]
    snapshots: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """The settings of the first replica; the others differ in seed and numbers."""
        return self.members[0]

    @property
    def task(self) -> Task:
        return self.tasks[0]

    @cached_property
    def engine(self) -> Engine:
        scans = self.settings.model.scan_layers
        return ScanEngine(self._replicas, self._replicas.lead_axes) if scans else self._replicas

    @cached_property
    def _replicas(self) -> ReplicaEngine:
        numbers = traced_numbers(self.members)
        try:
            return make_replica_engine(
                self.settings.parallel,
                len(self.members),
                numbers,
                same_batch=self._same_batches,
            )
        except ValueError as error:
            raise UserError(f"config.parallel: {error}") from error

    def replica(self, state: TrainState, index: int) -> TrainState:
        """One replica's part of a portable state, on every device."""
        own: TrainState = self._replicas.replica(state.saved, index)
        return own.replace(frozen=state.frozen)

    @property
    def _same_batches(self) -> bool:
        return len({member.order_seed for member in self.members}) == 1

    @property
    def _seeds(self) -> np.ndarray:
        return np.array([member.seed for member in self.members])

    def abstract_state(self, init_state: InitState) -> TrainState:
        """Shapes, dtypes and shardings of the state; each leaf has a leading axis of replicas."""
        abstract = jax.eval_shape(jax.vmap(init_state), self._seeds)
        sharding = self._replicas.replica_sharding
        each = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), abstract
        )
        one = build.abstract_state(self.settings, init_state, self.engine.mesh)
        return each.replace(frozen=one.frozen)  # all share these

    def first_state(self, init_state: InitState, abstract: TrainState) -> TrainState:
        init, is_loaded = jax.vmap(init_state), lambda path: path.startswith(f"{FROZEN}/")
        state = create_state(init, self._seeds, abstract, is_loaded).saved
        if not self.settings.train.init_from or "base" in self.snapshots:
            return state
        each = [warm_started(self.replica(state, i), one) for i, one in enumerate(self.members)]
        stack = jax.jit(
            lambda states: jax.tree.map(lambda *leaves: jnp.stack(leaves), *states),
            out_shardings=self._replicas.replica_sharding,
        )
        return stack(each)

    def frozen(self, abstract: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.snapshots[name].params(shapes) for name, shapes in abstract.items()}

    def batches(self, rows: int) -> TrainBatches | StackedBatches:
        """The training data, in one order for all replicas or in one for each."""
        chosen = self.members[:1] if self._same_batches else self.members
        each = [
            build.batches_of(one, self.task, self.examples, rows, replicas=len(chosen))
            for one in chosen
        ]
        return each[0] if self._same_batches else StackedBatches(each)

    def log(self, start: int) -> ReplicaLogs:
        return ReplicaLogs(
            self.folders,
            start_step=start,
            config=self.settings.logging,
            console=console_of(self.settings, self.task, start),
        )

    def has_record(self, step: int, split: str) -> bool:
        return all(split in recorded_splits(one / METRICS, step) for one in self.folders)

    def scores(self, step: int) -> list[Any]:
        """Arrays [R] of validation scores so far."""
        each = [recorded_scores(one, self.settings, self.task, step) for one in self.folders]
        return [np.array(scores) for scores in zip(*each, strict=True)]

    def learning_rate(self, schedule: Callable[[int], Any]) -> Callable[[int], Any]:
        rates = np.array([member.optimizer.learning_rate for member in self.members])
        return lambda updates: rates / rates[0] * float(schedule(updates))

    def validation(self) -> Callable[[int, TrainState], Scores]:
        """A function (step, state) -> metrics and scores [R]; NaN for a replica that diverged."""
        by_loss: dict[float, Callable[[int, TrainState, Path], Scores]] = {}
        for one, task in zip(self.members, self.tasks, strict=True):
            if one.train.label_smoothing not in by_loss:
                by_loss[one.train.label_smoothing] = validation(one, task, self.engine.mesh)

        def evaluate_all(step: int, state: TrainState) -> Scores:
            found: list[Scores] = []
            for i, (one, folder) in enumerate(zip(self.members, self.folders, strict=True)):
                own, evaluate = self.replica(state, i), by_loss[one.train.label_smoothing]
                is_finite = _is_finite(own.params)
                found.append(evaluate(step, own, folder) if is_finite else ({}, math.nan))
            metrics, scores = zip(*found, strict=True)
            return _stack_metrics(metrics), np.array(scores)

        return evaluate_all

    def diagnostics(self) -> "ReplicaDiagnostics":
        device = self.engine.mesh.devices.flat[0]
        mesh = make_mesh(dataclasses.replace(self.settings.parallel, data=1), [device])
        each = build.build_diagnostics(self.settings, self.task, self._replicas)
        return ReplicaDiagnostics(self, dataclasses.replace(each, mesh=mesh))

    def save_each(self, state: TrainState, checkpoints: Checkpoints) -> None:
        """Saves each replica's part of the state, and of the data state, in its own workdir.

        Args:
          state: the portable state of all replicas after the last step.
          checkpoints: the joint checkpoints, which contain that step.
        """
        joint = checkpoints.open(int(np.max(state.step)), items=(DATA,))
        for i, folder in enumerate(self.folders):
            data_state = joint.data_state
            own_data = data_state if self._same_batches else replica_state(data_state, i)
            own = Checkpoints(folder / CHECKPOINTS, self.settings.checkpoint)
            own.provenance = checkpoints.provenance
            with own:
                own.save(int(state.step[i]), self.replica(state, i).saved, own_data)


@dataclasses.dataclass(frozen=True)
class ReplicaDiagnostics:
    """Diagnostics of replicas, one after another, on one device.

    Attributes:
      replicas: the replicas.
      each: diagnostics of one.
    """

    replicas: Replicas
    each: Diagnostics

    def is_due(self, step: int) -> bool:
        return self.each.is_due(step)

    def __call__(self, state: TrainState, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The diagnostics as arrays [R]; arguments as of `Diagnostics`."""
        engine, place = self.replicas._replicas, replicated(self.each.mesh)
        found = []
        for i in range(engine.num_replicas):
            own = jax.device_put(self.replicas.replica(state, i), place)
            of_one = lambda tree, i=i: jax.tree.map(lambda x: x[i], tree)  # noqa: E731
            own_rows = rows if engine.same_batch else of_one(rows)
            found.append(self.each(own, own_rows, of_one(engine.numbers)))
        return _stack_metrics(found)


def _is_finite(params: Any) -> bool:
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(params))


def _stack_metrics(metrics: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The metrics of R replicas as arrays [R]; NaN, or an empty text, for a replica without."""
    known = next((each for each in metrics if each), {})
    return {
        name: np.array(
            [each.get(name, "" if isinstance(value, str) else np.nan) for each in metrics]
        )
        for name, value in known.items()
    }
