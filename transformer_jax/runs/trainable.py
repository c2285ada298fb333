"""What the training loop trains: one run, or replicas of it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from transformer_jax.data.batches.pipeline import StackedBatches, TrainBatches
from transformer_jax.logs.run_log import Log
from transformer_jax.parallel.interface import Engine
from transformer_jax.runs.config import Settings
from transformer_jax.tasks.interface import Task
from transformer_jax.training.state import TrainState

InitState = Callable[[Any], TrainState]
"""A seed -> the portable state before the first step."""
Scores = tuple[dict[str, Any], float]
"""Metrics of the validation split, and the score that the best checkpoint has most of."""


class Trainable(Protocol):
    """What the loop trains: one run, or replicas of it."""

    @property
    def settings(self) -> Settings:
        """Of the run; of replicas, what they have in common."""

    @property
    def workdir(self) -> Path:
        """Where checkpoints and profiles go."""

    @property
    def task(self) -> Task:
        """With its model."""

    @property
    def engine(self) -> Engine:
        """How the devices share the work."""

    def abstract_state(self, init_state: InitState) -> TrainState:
        """Shapes, dtypes and shardings of the state."""

    def first_state(self, init_state: InitState, abstract: TrainState) -> TrainState:
        """The portable state before the first step."""

    def base(self, abstract: Any) -> Any:
        """The parameters that adapters are beside, of these shapes; None where there are none."""

    def batches(self, rows: int) -> TrainBatches | StackedBatches:
        """The training data, so many rows of it in a batch."""

    def log(self, start: int) -> AbstractContextManager[Log]:
        """Where metrics go, from step `start` on; closed when training ends."""

    def has_record(self, step: int, split: str) -> bool:
        """Whether an earlier start has written the metrics of a split at a step."""

    def scores(self, step: int) -> list[float]:
        """Of the evaluations that an earlier start has made, up to a step."""

    def learning_rate(self, schedule: Callable[[int], Any]) -> Callable[[int], Any]:
        """Updates done -> the learning rate that is logged."""

    def validation(self) -> Callable[[int, Any], Scores]:
        """(step, params) -> scores; UserError where the split or the search would be refused."""
