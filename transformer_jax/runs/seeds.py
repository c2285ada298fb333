# SPDX-License-Identifier: Apache-2.0
"""Replicas: seeds of one config, or configs that differ in numbers, trained in one program."""

import contextlib
import dataclasses
import math
import operator
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.checkpoints.step_folder import DATA, step_folders
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.checkpoints.warm_start import WarmStart
from transformer_jax.data.batches.pipeline import StackedBatches, TrainBatches, replica_state
from transformer_jax.errors import UserError, user_errors
from transformer_jax.nn.lora import merge_adapters
from transformer_jax.nn.traced_numbers import dropout_rate
from transformer_jax.parallel.engines import (
    Engine,
    ReplicaEngine,
    ScanEngine,
    make_replica_engine,
)
from transformer_jax.parallel.first_state import create_state
from transformer_jax.parallel.sharding import make_mesh, replicated
from transformer_jax.runs import build
from transformer_jax.runs.config import load_json, resolve, save_json
from transformer_jax.runs.evaluate import Scores, validation
from transformer_jax.runs.frozen import with_stored_scores
from transformer_jax.runs.prepare import check_same_run, open_training, prepare
from transformer_jax.runs.run import Run
from transformer_jax.runs.settings import COMMAND, Settings
from transformer_jax.runs.train import InitState, SingleRun, fit
from transformer_jax.runs.user_modules import Modules, record_modules, user_components
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    CONFIG,
    REFERENCE,
    TOGETHER,
    TOKENIZER,
    WorkdirHandle,
    lock_workdir,
    require_own_folder,
    restore_records,
    workdir_path,
    workdir_within,
)
from transformer_jax.runtime import platform
from transformer_jax.runtime.files import remove
from transformer_jax.runtime.startup import keep_freed_memory
from transformer_jax.tokenization import copy_tokenizers
from transformer_jax.training.diagnostics import Diagnose
from transformer_jax.training.loop import GoodputTimer
from transformer_jax.training.state import FROZEN, TrainState

NUMBERS = (
    *("optimizer.learning_rate", "optimizer.weight_decay", "train.label_smoothing"),
    *("model.dropout_rate", "model.embedding_dropout_rate", "model.attention_dropout_rate"),
    *("model.feed_forward_dropout_rate", "lora.dropout_rate"),
)
"""Config fields of the numbers that enter the training step as traced arrays
(`nn.traced_numbers`). A number that is 0 in one config alone makes another program."""


def _value(settings: Settings, field: str) -> float:
    inherits = field == "model.embedding_dropout_rate"  # None is the rate of the model
    return operator.attrgetter("model.embedding_dropout" if inherits else field)(settings)


def traced_numbers(members: Sequence[Settings]) -> dict[str, Any]:
    """Arrays [R] of the numbers that differ between R replicas, by field."""
    stacked: dict[str, Any] = {}
    for field in NUMBERS:
        values = [_value(member, field) for member in members]
        if len(set(values)) == 1:  # a number that all share stays a constant of the program
            continue
        if field.endswith("dropout_rate"):
            thresholds, factors = zip(*map(dropout_rate, values), strict=True)
            stacked[field] = np.stack(thresholds), np.stack(factors)
        else:  # every schedule is a multiple of the learning rate
            unit = values[0] if field == "optimizer.learning_rate" else 1.0
            stacked[field] = (np.array(values) / unit).astype(np.float32)
    return stacked


def program_fields(settings: Settings) -> dict[str, Any]:
    """Fields that replicas of one program share, and which of `NUMBERS` are not 0; with a component
    of the user's own, which may read any number, all fields except the seed."""
    numbers = () if user_components(settings) else NUMBERS
    left_out = {*numbers, "seed"}
    shared = {name: value for name, value in settings.values.items() if name not in left_out}
    return shared | {field: _value(settings, field) != 0 for field in numbers}


def check_alike(members: Mapping[str, Settings]) -> None:
    """Raises UserError, which names a field, if the configs need more than one program."""
    first, *others = members
    expected = program_fields(members[first])
    for name in others:
        fields = program_fields(members[name])
        for field in expected | fields:
            if fields.get(field) != expected.get(field):
                raise UserError(
                    f"{name} differs from {first} in config.{field}: replicas may differ only in "
                    f"seed, {', '.join(NUMBERS)}, and there not from 0 (with components of your "
                    "own only in seed); train them one by one"
                )


def apart_reason(settings: Settings) -> str | None:
    """The option that forces seeds to be trained one after another; None if there is none."""
    if settings.eval.patience is not None:
        return "config.eval.patience ends each at another step"
    if settings.train.on_spike == "rewind":
        return "config.train.on_spike 'rewind' takes each back to a checkpoint of its own"
    if math.prod(settings.parallel.model_axes.values()) > 1 or jax.process_count() > 1:
        return "several devices or processes share each model"
    return None


def seed_configs(settings: Settings | ConfigDict, count: int) -> dict[str, Settings]:
    """{"seed_N": settings}, with `count` seeds from their own upwards."""
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
      configs: by name; they differ only in `seed` and the fields of `NUMBERS`.
      workdir: the folder with the joint checkpoint.
      modules, until: as of `train`.
      folders: the workdir of each replica; None: folders of their names in `workdir`.

    Raises:
      UserError: a config, its data or a module cannot be used, the configs differ in more or have
        an option for which seeds must train apart, the workdir holds other runs, or no replica's
        loss is finite any longer.
      Stopped: a SIGTERM came; the joint checkpoint is saved, and the same call continues.
    """
    clock = GoodputTimer()
    keep_freed_memory()
    platform.use_compilation_cache()
    workdir = workdir_path(workdir)
    common = workdir_within(workdir, TOGETHER)  # the joint checkpoint, and tokenizers
    folders = folders or {name: workdir_within(workdir, name) for name in configs}
    members = {name: resolve(config, {}, modules, COMMAND) for name, config in configs.items()}
    check_alike(members)
    reason = apart_reason(next(iter(members.values())))
    if reason:
        raise UserError(f"{reason}: train one seed after another, each in a workdir of its own")
    handle = WorkdirHandle(common, is_shared=True)
    training = open_training([*members.values()], modules, handle)
    members = dict(zip(members, training.members, strict=True))  # now scaled to the data
    checkpoints = training.checkpoints
    _check_same_replicas(members, folders, workdir, checkpoints)
    to_lock = [common, *folders.values()]
    for folder in to_lock:
        require_own_folder(folder)  # all of them, before the first is marked
    with contextlib.ExitStack() as locks:
        for folder in to_lock:
            locks.enter_context(lock_workdir(folder))
        locks.enter_context(checkpoints)
        locks.enter_context(platform.reproducible(training.settings.train.reproducible))
        is_resumed = checkpoints.latest_step() is not None
        prepare(training, common)
        # The workdir of each replica is made like that of a run trained by itself.
        for name, settings in members.items():
            if is_resumed:
                restore_records(folders[name])
            remove(folders[name] / TOKENIZER)
            copy_tokenizers(common / TOKENIZER, folders[name] / TOKENIZER)
            save_json(settings, folders[name] / CONFIG)
            record_modules(folders[name], settings, training.modules)
        replicas = Replicas(training, workdir, [*folders.values()], training.open_tasks(common))
        state = fit(replicas, clock, until)
        replicas.save_each(state)
    runs = {}
    for i, (name, settings) in enumerate(members.items()):
        replica = replicas.replica(state.evaluated, i)
        folder = folders[name]
        if (common / REFERENCE).is_dir():
            shutil.copytree(common / REFERENCE, folder / REFERENCE, dirs_exist_ok=True)
        task = with_stored_scores(replicas.tasks[i], settings, folder)
        params = merge_adapters(replica.model_params)
        runs[name] = Run(settings, folder, task, params, int(replica.step))
    return runs


def _check_same_replicas(
    configs: Mapping[str, Settings],
    folders: Mapping[str, Path],
    workdir: Path,
    checkpoints: Checkpoints,
) -> None:
    """Raises UserError if the folder holds other replicas, or a run trained by itself."""
    if checkpoints.latest_step() is None:
        alone = [workdir] if (workdir / CONFIG).exists() else []
        alone += [folder for folder in folders.values() if step_folders(folder / CHECKPOINTS)]
        if alone:
            raise UserError(
                f"{alone[0]} holds a run that was trained by itself; choose another --workdir"
            )
        return
    names = {path.parent.name for path in workdir.glob(f"*/{CONFIG}")} - {TOGETHER}
    if names and names != set(configs):
        raise UserError(
            f"{workdir} holds {', '.join(sorted(names))} trained together, not "
            f"{', '.join(configs)}; choose another --workdir or the same number of seeds"
        )
    for name, settings in configs.items():
        check_same_run(settings, load_json(folders[name] / CONFIG), folders[name])


class Replicas(SingleRun):
    """Replicas of one run; what they share is that of the first one."""

    @property
    def members(self) -> Sequence[Settings]:
        """The settings of each replica, which differ in seed and numbers."""
        return self.training.members

    @cached_property
    def engine(self) -> Engine:
        scans = self.settings.model.scan_layers
        return ScanEngine(self._replicas) if scans else self._replicas

    @cached_property
    def _replicas(self) -> ReplicaEngine:
        numbers = traced_numbers(self.members)
        with user_errors("config.parallel"):
            return make_replica_engine(
                self.settings.parallel, len(self.members), numbers, same_batch=self._same_batches
            )

    def replica(self, state: TrainState, index: int) -> TrainState:
        replica: TrainState = self._replicas.replica(state.saved, index)
        return replica.replace(frozen=state.frozen)

    @property
    def _same_batches(self) -> bool:
        return len({member.order_seed for member in self.members}) == 1

    @property
    def _seeds(self) -> np.ndarray:
        return np.array([member.seed for member in self.members])

    def abstract_state(self, init_state: InitState) -> TrainState:
        """Shapes, dtypes and shardings; each leaf but the frozen ones has an axis of replicas."""
        abstract = jax.eval_shape(jax.vmap(init_state), self._seeds)
        sharding = self._replicas.replica_sharding
        stacked = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), abstract
        )
        return stacked.replace(frozen=super().abstract_state(init_state).frozen)

    def first_state(
        self, init_state: InitState, abstract: TrainState, start: WarmStart | None
    ) -> TrainState:
        def is_loaded(path: str) -> bool:
            return path.startswith(f"{FROZEN}/")

        state = create_state(init_state, self._seeds, abstract, is_loaded).saved
        if start is None:
            return state
        states = []
        for i in range(len(self.members)):
            fresh = self.replica(state, i)
            states.append(self.with_loaded(fresh, start.load(fresh.params)))
        stack = jax.jit(
            lambda states: jax.tree.map(lambda *leaves: jnp.stack(leaves), *states),
            out_shardings=self._replicas.replica_sharding,
        )
        return stack(states)

    def batches(self, rows: int) -> TrainBatches | StackedBatches:
        """The training data, in one order for all replicas or in one for each."""
        examples = self.training.examples
        if self._same_batches:
            return build.batches_of(self.settings, self.task, examples, rows)
        count = len(self.members)
        batches = [
            build.batches_of(
                member, self.task, examples, rows, replicas=count, logs_overlong=number == 0
            )
            for number, member in enumerate(self.members)
        ]
        return StackedBatches(batches)

    def scores(self, records: Sequence[Sequence[Mapping[str, Any]]]) -> list[Any]:
        """Arrays [R] of the scores of `validation_records`."""
        scores = [super(Replicas, self).scores([of_replica]) for of_replica in records]
        return [np.array(of_step) for of_step in zip(*scores, strict=True)]

    def learning_rate(self, schedule: Callable[[int], Any]) -> Callable[[int], Any]:
        # `schedule` is that of the first replica, and a multiple of its learning rate.
        rates = np.array([member.optimizer.learning_rate for member in self.members])
        return lambda updates: rates / rates[0] * float(schedule(updates))

    def validation(self) -> Callable[[int, TrainState], Scores]:
        """A function (step, state) -> metrics and scores [R]; NaN for a replica that diverged."""
        # Replicas of one label smoothing share an evaluator: no other number enters an evaluation.
        evaluators = {}
        for member, task in zip(self.members, self.tasks, strict=True):
            if member.train.label_smoothing not in evaluators:
                evaluate = validation(member, task, self.engine.mesh)
                evaluators[member.train.label_smoothing] = evaluate

        def evaluate_all(step: int, state: TrainState) -> Scores:
            results: list[Scores] = []
            for i, (member, folder) in enumerate(zip(self.members, self.folders, strict=True)):
                replica = self.replica(state, i)
                evaluate = evaluators[member.train.label_smoothing]
                leaves = jax.tree.leaves(replica.params)
                is_finite = all(bool(jnp.isfinite(leaf).all()) for leaf in leaves)
                results.append(evaluate(step, replica, folder) if is_finite else ({}, math.nan))
            metrics, scores = zip(*results, strict=True)
            return _stack_metrics(metrics), np.array(scores)

        return evaluate_all

    def diagnostics(self) -> Diagnose:
        """Diagnostics of replicas, one after another on one device: arrays [R]."""
        engine = self._replicas
        device = engine.mesh.devices.flat[0]
        mesh = make_mesh(dataclasses.replace(self.settings.parallel, data=1), [device])
        diagnostics = build.build_diagnostics(self.settings, self.task, engine)
        of_replica = dataclasses.replace(diagnostics, mesh=mesh)

        def diagnose(state: TrainState, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            metrics = []
            for i in range(engine.num_replicas):
                replica = jax.device_put(self.replica(state, i), replicated(mesh))
                replica_rows = rows if engine.same_batch else _part(rows, i)
                metrics.append(of_replica(replica, replica_rows, _part(engine.numbers, i)))
            return _stack_metrics(metrics)

        return diagnose

    def save_each(self, state: TrainState) -> None:
        """Saves each replica's part of the last state, which the joint checkpoints contain, and of
        the data state in its own workdir."""
        checkpoints = self.training.checkpoints
        data_state = checkpoints.snapshot(int(np.max(state.step)), items=(DATA,)).data_state
        for i, folder in enumerate(self.folders):
            replica_data = data_state if self._same_batches else replica_state(data_state, i)
            with Checkpoints(folder / CHECKPOINTS, self.settings.checkpoint) as of_replica:
                of_replica.provenance = checkpoints.provenance
                of_replica.save(int(state.step[i]), self.replica(state, i).saved, replica_data)


def _part(tree: Any, replica: int) -> Any:
    """One replica's part of arrays with a leading axis of replicas."""
    return jax.tree.map(lambda x: x[replica], tree)


def _stack_metrics(metrics: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The metrics of R replicas as arrays [R]; NaN, or an empty text, for a replica without."""
    first = next(filter(None, metrics), {})  # replicas that diverged have no metrics
    stacked = {}
    for name, value in first.items():
        missing: Any = "" if isinstance(value, str) else np.nan
        stacked[name] = np.array([replica.get(name, missing) for replica in metrics])
    return stacked
