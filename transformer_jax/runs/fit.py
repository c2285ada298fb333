"""The training loop put together, for one run or for replicas of it."""

import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import jax

from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.data.batches.pipeline import StackedBatches, TrainBatches
from transformer_jax.errors import UserError
from transformer_jax.logs.run_log import Log
from transformer_jax.nn.kernels import Choice, noted_choices
from transformer_jax.parallel.interface import Engine
from transformer_jax.runs import build
from transformer_jax.runs.config import Settings
from transformer_jax.runs.room import require_room
from transformer_jax.runs.workdir import PROFILE
from transformer_jax.tasks.interface import Task
from transformer_jax.tasks.packed import batch_shapes
from transformer_jax.training.loop import Every, Loop
from transformer_jax.training.patience import Patience
from transformer_jax.training.profiling import Profiler, step_products, utilization
from transformer_jax.training.state import TrainState

logger = logging.getLogger(__name__)

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


def fit(trainable: Trainable, checkpoints: Checkpoints) -> TrainState:
    """Trains, from the last checkpoint if there is one; returns the portable state.

    A step that was saved, and due to be evaluated, but whose evaluation did not end, is evaluated
    before the next one is trained.
    """
    settings, task, engine = trainable.settings, trainable.task, trainable.engine
    schedule, train_step, init_state = build.build_training(settings, task, engine)
    rows = build.batch_rows(settings, task, engine.row_shards)
    batches = trainable.batches(rows)
    abstract = trainable.abstract_state(init_state)
    batch = batch_shapes(task.lengths, rows)
    model = step_products(task, jax.eval_shape(init_state, settings.seed).model_params, batch)
    parts = build.micro_batches(settings, task, engine.row_shards)
    require_room(settings, abstract, engine, model.largest // parts)
    every, num_steps, workdir = _every(settings), settings.train.num_steps, trainable.workdir
    start, state, evaluate_start, patience = 0, None, False, _patience(settings)
    if checkpoints.latest_step() is not None:
        start, state, data_state = checkpoints.restore("latest", abstract.saved)
        state = state.replace(base=trainable.base(abstract.base))
        batches.set_state(data_state)
        logger.info("%s goes on from step %d", workdir, start)
        evaluate_start = every.evaluates(start, num_steps)
        evaluate_start = evaluate_start and not trainable.has_record(start, "valid")
        patience = _patience(settings, trainable.scores(start))
        if patience.exhausted:
            told = "%s has ended at step %d, after %s; raise eval.patience for more"
            logger.info(told, workdir, start, patience)
            return state
        if start >= num_steps and not evaluate_start:
            told = "%s has finished its %d steps; raise train.num_steps%s for more"
            too = " and optimizer.decay_steps" if settings.optimizer.decay_steps else ""
            logger.info(told, workdir, start, too)
            return state
    evaluate = trainable.validation()  # before any step: it refuses what it could not evaluate
    with noted_choices() as attention:
        step = engine.compile(train_step, abstract, batch)  # beside what follows
    _tell_attention(settings.model.attention, attention)
    if state is None:
        state = trainable.first_state(init_state, abstract)
    batches.start()
    with trainable.log(start) as log, contextlib.closing(batches):
        loop = Loop(
            train_step=step,
            portable=engine.portable,
            batches=batches,
            log=log,
            checkpoints=checkpoints,
            evaluate=evaluate,
            learning_rate=trainable.learning_rate(jax.jit(schedule)),
            utilization=utilization(engine.num_replicas * model.flops, settings.model.dtype, step),
            profiler=Profiler(workdir / PROFILE, start + 1, settings.logging.profile_steps),
            every=every,
            patience=patience,
        )
        state = engine.adopt(state)
        return engine.portable(loop.run(state, start, num_steps, evaluate_start=evaluate_start))


def _tell_attention(asked: str, choices: Sequence[Choice]) -> None:
    """Logs what computes the step's attention, and why; UserError where it is not what was asked
    for by its name."""
    for choice in choices:
        if asked not in ("auto", choice.name):
            raise UserError(
                f"config.model.attention is {asked!r}, but {choice.reason}; set it to auto or plain"
            )
        if choice.reason or choice.kernel is not None:
            logger.info("attention: %s", choice)


def _patience(settings: Settings, scores: Sequence[float] = ()) -> Patience:
    optimizer = settings.optimizer
    return Patience(
        settings.eval.patience, optimizer.plateau_patience, optimizer.plateau_factor, scores
    )


def _every(settings: Settings) -> Every:
    return Every(
        log=settings.logging.every_steps,
        evaluate=settings.eval.every_steps,
        save=settings.checkpoint.every_steps,
    )
