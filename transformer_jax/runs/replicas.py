"""Seeds, and learning rates, of one config trained together: one compilation, one process.

Layout of the directory: a whole workdir for each replica under its name, which has a checkpoint
when training has finished, and `together/`, which holds the checkpoints of all on the way.
"""

import contextlib
import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.data.batches.pipeline import StackedBatches, TrainBatches, replica_state
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.logs.run_log import ReplicaLogs
from transformer_jax.parallel.engines import create_state
from transformer_jax.parallel.replicas import ReplicaEngine, make_replica_engine
from transformer_jax.runs import build
from transformer_jax.runs.config import (
    FIXED,
    Settings,
    check_same_run,
    load_json,
    override,
    read_settings,
    save_json,
)
from transformer_jax.runs.launch import batches_of, started, train_plan, validation
from transformer_jax.runs.run import Run
from transformer_jax.runs.sole_writer import sole_writer
from transformer_jax.runs.train import prepare, workdir_path
from transformer_jax.runtime.compilation_cache import use_compilation_cache
from transformer_jax.runtime.host_memory import keep_freed_memory
from transformer_jax.tasks.interface import Task
from transformer_jax.tokenization import load_tokenizers
from transformer_jax.training.state import TrainState


def seeded(config: ConfigDict, count: int) -> dict[str, ConfigDict]:
    """A config with `count` seeds from its own upwards, by the name of each."""
    seeds = range(config.seed, config.seed + count)
    return {f"seed_{seed}": override(config, {"seed": seed}) for seed in seeds}


def train_together(configs: Mapping[str, ConfigDict], workdir: str | Path) -> dict[str, Run]:
    """Trains replicas in one program, or goes on from their last checkpoint.

    Each is what `train` makes of its config. Where one diverges the others go on.

    Args:
      configs: by name; they differ in nothing but `seed` and `optimizer.learning_rate`.
      workdir: of all; each has its own below.

    Returns:
      The runs, by name. After a SIGTERM they are not finished, and only the joint checkpoint is
      kept; the same call goes on.

    Raises:
      UserError: a config or its data cannot be used, they differ in more, the workdir holds other
        runs, or no replica's loss is finite any longer.
    """
    keep_freed_memory()
    use_compilation_cache()
    workdir = workdir_path(workdir)
    members = {name: read_settings(config) for name, config in configs.items()}
    _check_alike(members)
    common, first = workdir / "together", next(iter(configs.values()))
    settings = read_settings(first)
    examples = open_split(settings.data, "train")
    checkpoints = Checkpoints(common / "checkpoints", settings.checkpoint)
    with contextlib.ExitStack() as open_folders:
        for folder in (common, *(workdir / name for name in configs)):
            open_folders.enter_context(sole_writer(folder))
        open_folders.enter_context(checkpoints)
        _check_same_replicas(configs, workdir, checkpoints)
        prepare(first, common, checkpoints, examples)
        for name, config in configs.items():
            _place_replica(config, workdir / name, common / "tokenizer")
        tokenizers = load_tokenizers(common / "tokenizer")
        task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
        replicas = Replicas(list(members.values()), list(members), workdir, task, examples)
        state = train_plan(replicas, checkpoints)
        if int(state.step[0]) >= settings.train.num_steps:
            replicas.divide(state, checkpoints.data_state("latest"))
    return {
        name: Run(config, workdir / name, task, replicas.engine.replica(state.params, i), step)
        for i, (name, config) in enumerate(configs.items())
        for step in [int(state.step[i])]
    }


@dataclasses.dataclass(frozen=True)
class Replicas:
    """The plan (`launch.Plan`) of replicas.

    Attributes:
      members: the settings of each.
      names: of their folders in `workdir`.
      workdir, task, examples: of all.
    """

    members: Sequence[Settings]
    names: Sequence[str]
    workdir: Path
    task: Task
    examples: Sequence[Any]

    @property
    def settings(self) -> Settings:
        """Those of the first one; the others differ in seed and learning rate alone."""
        return self.members[0]

    @cached_property
    def engine(self) -> ReplicaEngine:
        """All replicas in one program."""
        peak = self.settings.optimizer.learning_rate
        rates = [member.optimizer.learning_rate / peak for member in self.members]
        try:
            return make_replica_engine(self.settings.parallel, rates, self._same_batches)
        except ValueError as error:
            raise UserError(f"config.parallel: {error}") from error

    @property
    def _same_batches(self) -> bool:
        return len({member.order_seed for member in self.members}) == 1

    @property
    def _seeds(self) -> np.ndarray:
        return np.array([member.seed for member in self.members])

    def abstract_state(self, init_state) -> TrainState:
        """As `Plan.abstract_state`: with the replicas before every leaf."""
        abstract = jax.eval_shape(jax.vmap(init_state), self._seeds)
        sharding = self.engine.divided
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), abstract
        )

    def first_state(self, init_state, abstract) -> TrainState:
        """As `Plan.first_state`."""
        state = create_state(jax.vmap(init_state), self._seeds, abstract)
        if not self.settings.train.init_from:
            return state
        each = [started(self.engine.replica(state, i), one) for i, one in enumerate(self.members)]
        stack = jax.jit(
            lambda states: jax.tree.map(lambda *leaves: jnp.stack(leaves), *states),
            out_shardings=self.engine.divided,
        )
        return stack(each)

    def batches(self, rows: int) -> TrainBatches | StackedBatches:
        """As `Plan.batches`: one order for all, or one for each."""
        chosen = self.members[:1] if self._same_batches else self.members
        each = [batches_of(one, self.task, self.examples, rows) for one in chosen]
        return each[0] if self._same_batches else StackedBatches(each)

    def log(self, start: int) -> ReplicaLogs:
        """As `Plan.log`: one for each."""
        folders = [self.workdir / name for name in self.names]
        options = dict(num_steps=self.settings.train.num_steps, wandb=self.settings.logging.wandb)
        return ReplicaLogs(folders, start_step=start, **options)

    def learning_rate(self, schedule):
        """That of each."""
        return lambda updates: np.array(self.engine.rates) * float(schedule(updates))

    def validation(self):
        """As `Plan.validation`, one after another; the score is the mean of those that are
        finite."""
        evaluate = validation(self.settings, self.task, self.engine.mesh)

        def evaluate_all(step: int, params: Any) -> tuple[dict[str, Any], float]:
            found = {}
            for i, name in enumerate(self.names):
                own = self.engine.replica(params, i)
                if _is_finite(own):
                    found[i] = evaluate(step, own, self.workdir / name)
            scores = [score for _, score in found.values()]
            score = float(np.mean(scores)) if scores else float("nan")
            return _stacked([found.get(i, ({},))[0] for i in range(len(self.names))]), score

        return evaluate_all

    def divide(self, state: TrainState, data_state: Any) -> None:
        """Saves each replica's part of the state in its own workdir."""
        for i, name in enumerate(self.names):
            place = data_state if self._same_batches else replica_state(data_state, i)
            own = Checkpoints(self.workdir / name / "checkpoints", self.settings.checkpoint)
            with own:
                own.save(int(state.step[i]), self.engine.replica(state, i), place)


def _is_finite(params: Any) -> bool:
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(params))


def _stacked(metrics: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The metrics of replicas as arrays [R]; NaN, or no text, of one that has none."""
    known = next((each for each in metrics if each), {})
    return {
        name: np.array(
            [each.get(name, "" if isinstance(value, str) else np.nan) for each in metrics]
        )
        for name, value in known.items()
    }


def _check_alike(members: Mapping[str, Settings]) -> None:
    """Raises UserError where replicas differ in more than seed and learning rate."""
    names = list(members)
    first = members[names[0]]
    for name in names[1:]:
        rate = members[name].optimizer.learning_rate
        optimizer = dataclasses.replace(first.optimizer, learning_rate=rate)
        alike = dataclasses.replace(first, seed=members[name].seed, optimizer=optimizer)
        for section in FIXED:
            if getattr(alike, section) != getattr(members[name], section):
                raise UserError(
                    f"{name} differs from {names[0]} in config.{section}: replicas may differ in "
                    "seed and optimizer.learning_rate alone; train them one by one"
                )


def _check_same_replicas(configs, workdir: Path, checkpoints: Checkpoints) -> None:
    if checkpoints.latest_step() is None:
        return
    held = {path.parent.name for path in workdir.glob("*/config.json")} - {"together"}
    if held != set(configs):
        raise UserError(
            f"{workdir} holds {', '.join(sorted(held))} trained together, not "
            f"{', '.join(configs)}; choose another --workdir or the same number of seeds"
        )
    for name, config in configs.items():
        check_same_run(config, load_json(workdir / name / "config.json"), workdir / name)


def _place_replica(config: ConfigDict, folder: Path, tokenizer: Path) -> None:
    shutil.copytree(tokenizer, folder / "tokenizer", dirs_exist_ok=True)
    save_json(config, folder / "config.json")
