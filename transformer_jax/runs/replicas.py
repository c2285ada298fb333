"""Replicas of a run, which the loop trains in one program."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.data.batches.pipeline import StackedBatches, TrainBatches, replica_state
from transformer_jax.errors import UserError
from transformer_jax.logs.records import recorded_splits
from transformer_jax.logs.run_log import ReplicaLogs
from transformer_jax.parallel.depth import StackedLayers
from transformer_jax.parallel.engines import create_state
from transformer_jax.parallel.interface import Engine
from transformer_jax.parallel.replicas import ReplicaEngine, make_replica_engine
from transformer_jax.runs.config import Settings
from transformer_jax.runs.train import batches_of, started
from transformer_jax.runs.trainable import InitState, Scores
from transformer_jax.runs.validation import validation
from transformer_jax.runs.workdir import CHECKPOINTS, METRICS
from transformer_jax.tasks.interface import Task
from transformer_jax.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class Replicas:
    """Replicas of one run; a `Trainable`.

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
    def engine(self) -> Engine:
        """All replicas in one program."""
        scanned = self.settings.model.scan_layers
        return StackedLayers(self._together, axis=1) if scanned else self._together

    @cached_property
    def _together(self) -> ReplicaEngine:
        peak = self.settings.optimizer.learning_rate
        rates = [member.optimizer.learning_rate / peak for member in self.members]
        try:
            return make_replica_engine(self.settings.parallel, rates, self._same_batches)
        except ValueError as error:
            raise UserError(f"config.parallel: {error}") from error

    def replica(self, tree: Any, index: int) -> Any:
        """One replica's part of a portable state, or of a part of it, on every device."""
        return self._together.replica(tree, index)

    @property
    def _same_batches(self) -> bool:
        return len({member.order_seed for member in self.members}) == 1

    @property
    def _seeds(self) -> np.ndarray:
        return np.array([member.seed for member in self.members])

    def abstract_state(self, init_state: InitState) -> TrainState:
        """As `Trainable.abstract_state`: with the replicas before every leaf."""
        abstract = jax.eval_shape(jax.vmap(init_state), self._seeds)
        sharding = self._together.divided
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), abstract
        )

    def first_state(self, init_state: InitState, abstract: TrainState) -> TrainState:
        """As `Trainable.first_state`."""
        state = create_state(jax.vmap(init_state), self._seeds, abstract)
        if not self.settings.train.init_from:
            return state
        each = [started(self.replica(state, i), one) for i, one in enumerate(self.members)]
        stack = jax.jit(
            lambda states: jax.tree.map(lambda *leaves: jnp.stack(leaves), *states),
            out_shardings=self._together.divided,
        )
        return stack(each)

    def base(self, abstract: Any) -> None:
        """As `Trainable.base`: there are none."""

    def batches(self, rows: int) -> TrainBatches | StackedBatches:
        """As `Trainable.batches`: one order for all, or one for each."""
        chosen = self.members[:1] if self._same_batches else self.members
        each = [
            batches_of(one, self.task, self.examples, rows, replicas=len(chosen)) for one in chosen
        ]
        return each[0] if self._same_batches else StackedBatches(each)

    def log(self, start: int) -> ReplicaLogs:
        """As `Trainable.log`: one for each."""
        return ReplicaLogs(
            [self.workdir / name for name in self.names],
            start_step=start,
            num_steps=self.settings.train.num_steps,
            wandb=self.settings.logging.wandb,
        )

    def has_record(self, step: int, split: str) -> bool:
        """As `Trainable.has_record`: of each."""
        paths = [self.workdir / name / METRICS for name in self.names]
        return all(split in recorded_splits(path, step) for path in paths)

    def scores(self, step: int) -> list[float]:
        """As `Trainable.scores`: nothing hangs on them here."""
        return []

    def learning_rate(self, schedule: Callable[[int], Any]) -> Callable[[int], Any]:
        """That of each."""
        return lambda updates: np.array(self._together.rates) * float(schedule(updates))

    def validation(self) -> Callable[[int, Any], Scores]:
        """As `Trainable.validation`, one after another; the score is the mean of those that are
        finite."""
        evaluate = validation(self.settings, self.task, self.engine.mesh)

        def evaluate_all(step: int, params: Any) -> Scores:
            found = {}
            for i, name in enumerate(self.names):
                own = self.replica(params, i)
                if _is_finite(own):
                    found[i] = evaluate(step, own, self.workdir / name)
            scores = [score for _, score in found.values()]
            score = float(np.mean(scores)) if scores else float("nan")
            return _stacked([found.get(i, ({},))[0] for i in range(len(self.names))]), score

        return evaluate_all

    def divide(self, state: TrainState, checkpoints: Checkpoints) -> None:
        """Saves each replica's part of the state and of the joint checkpoint in its own workdir."""
        data_state = checkpoints.data_state("latest")
        for i, name in enumerate(self.names):
            place = data_state if self._same_batches else replica_state(data_state, i)
            own = Checkpoints(self.workdir / name / CHECKPOINTS, self.settings.checkpoint)
            own.provenance = checkpoints.provenance
            with own:
                own.save(int(state.step[i]), self.replica(state, i), place)


def _is_finite(params: Any) -> bool:
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(params))


def _stacked(metrics: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The metrics of R replicas as arrays [R]; NaN, or an empty text, for one that has none."""
    known = next((each for each in metrics if each), {})
    return {
        name: np.array(
            [each.get(name, "" if isinstance(value, str) else np.nan) for each in metrics]
        )
        for name, value in known.items()
    }
