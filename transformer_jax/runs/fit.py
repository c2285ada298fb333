"""The training loop put together, for one run or for replicas of it."""

import contextlib
import dataclasses
import functools
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import jax

from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.data.batches.pipeline import StackedBatches, TrainBatches
from transformer_jax.errors import DivergedError, UserError
from transformer_jax.logs.run_log import Log
from transformer_jax.nn.fused_attention import KernelChoice, record_kernel_choices
from transformer_jax.parallel.engines import Engine
from transformer_jax.parallel.sharding import bytes_per_device
from transformer_jax.runs import build
from transformer_jax.runs.config import Settings
from transformer_jax.runs.workdir import PROFILE
from transformer_jax.runtime.platform import devices_per_memory, require_memory
from transformer_jax.runtime.preemption import watch_preemption
from transformer_jax.tasks.interface import Task
from transformer_jax.tasks.losses import batch_shapes
from transformer_jax.training.loop import GoodputTimer, Intervals, Loop, Patience, SpikedError
from transformer_jax.training.profiling import Profiler, step_products, utilization
from transformer_jax.training.state import OPTIONAL_FIELDS, TrainState

# FOLDED runs.room: The memory that a training step needs, before any of it is allocated.


def require_room(settings: Settings, state: TrainState, engine: Engine, largest: int) -> None:
    """Raises UserError where a training step cannot fit into memory.

    Args:
      settings: of the run.
      state: shapes with their shardings.
      engine: which divides state and rows.
      largest: bytes of the largest array that the forward pass of a micro-batch makes, on all
        devices together.
    """

    gradient, tokens = bytes_per_device(state.params), settings.train.tokens_per_batch
    part = largest * engine.num_replicas // engine.mesh.size
    require_memory(
        devices_per_memory() * (bytes_per_device(state) + gradient + part),
        f"config: {sum(leaf.size for leaf in jax.tree.leaves(state.params)):,} parameters, with "
        f"gradients, optimizer and train.tokens_per_batch {tokens},",
    )


# FOLDED runs.trainable: What the training loop trains: one run, or replicas of it.


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


logger = logging.getLogger(__name__)

_MOST_REWINDS = 10
"""To one checkpoint."""


def fit(trainable: Trainable, checkpoints: Checkpoints, clock: GoodputTimer) -> TrainState:
    """Trains, from the last checkpoint if there is one; returns the portable state.

    A step that was saved, and due to be evaluated, but whose evaluation did not end, is evaluated
    before the next one is trained.

    Args:
      trainable: what is trained.
      checkpoints: of it.
      clock: made when the training began.

    Raises:
      DivergedError: as `Loop.run`, or training went back to one checkpoint too often.
      Stopped: as `Loop.run`.
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
    places = _ResumePoints(trainable, checkpoints, init_state, abstract)
    begin = None
    if places.some_saved:
        begin, data_state = places.last_saved()
        if _is_over(trainable, begin):
            return begin.take()
        batches.set_state(data_state)
    validate = trainable.validation()  # before any step: it refuses what it could not evaluate
    with record_kernel_choices() as attention:
        step = engine.compile(train_step, abstract, batch)  # beside what follows
    _tell_attention(settings.model.attention, attention)
    begin = begin or places.anew()
    batches.start()
    clock.attribute_rest("starting")
    with clock.measure("compiling"):
        used = utilization(engine.num_replicas * model.flops, settings.model.dtype, step)
    loop_with = functools.partial(
        Loop,
        train_step=step,
        to_portable=engine.to_portable,
        batches=batches,
        checkpoints=checkpoints,
        evaluate=validate,
        learning_rate=trainable.learning_rate(jax.jit(schedule)),
        utilization=used,
        intervals=_every(settings),
        diagnostics=build.build_diagnostics(settings, task, engine),
        timer=clock,
        rewinds=settings.train.on_spike == "rewind",
    )

    with contextlib.closing(batches), watch_preemption(settings.parallel.preemption_notice):
        run_from = functools.partial(_run_from, trainable, loop_with)
        return _with_rewinds(run_from, begin, places.back, clock)


@dataclasses.dataclass
class _Begin:
    """Where training begins, or goes on.

    Attributes:
      step: updates done.
      state: portable; None once it was taken.
      patience: with the scores so far.
      evaluate: whether to begin with an evaluation, which an earlier start did not end.
    """

    step: int
    state: TrainState | None
    patience: Patience
    evaluate: bool = False

    def take(self) -> TrainState:
        """The state, which is not held here any longer: an engine may keep a copy in its place."""
        state, self.state = self.state, None
        assert state is not None
        return state


@dataclasses.dataclass(frozen=True)
class _ResumePoints:
    """Where the training of something may begin; `abstract` are the shapes of its state."""

    trainable: Trainable
    checkpoints: Checkpoints
    init_state: InitState
    abstract: TrainState

    @property
    def some_saved(self) -> bool:
        return self.checkpoints.latest_step() is not None

    def anew(self) -> _Begin:
        state = self.trainable.first_state(self.init_state, self.abstract)
        return _Begin(0, state, _patience(self.trainable.settings))

    def last_saved(self) -> tuple[_Begin, Any]:
        """The last checkpoint, and its place in the data."""
        settings = self.trainable.settings
        step, state, data_state = self.checkpoints.restore(
            "latest", self.abstract.saved, OPTIONAL_FIELDS
        )
        state = state.replace(base=self.trainable.base(self.abstract.base))
        evaluate = _every(settings).is_evaluated(step, settings.train.num_steps)
        evaluate = evaluate and not self.trainable.has_record(step, "valid")
        patience = _patience(settings, self.trainable.scores(step))
        return _Begin(step, state, patience, evaluate), data_state

    def back(self) -> _Begin:
        """Where training goes back to."""
        self.checkpoints.wait()
        return self.last_saved()[0] if self.some_saved else self.anew()


def _is_over(trainable: Trainable, begin: _Begin) -> bool:
    """Whether nothing is left to do; logs it, or where training goes on."""
    settings, workdir = trainable.settings, trainable.workdir
    logger.info("%s goes on from step %d", workdir, begin.step)
    if begin.patience.is_exhausted:
        told = "%s has ended at step %d, after %s; raise eval.patience for more"
        logger.info(told, workdir, begin.step, begin.patience)
        return True
    if begin.step >= settings.train.num_steps and not begin.evaluate:
        told = "%s has finished its %d steps; raise train.num_steps%s for more"
        too = " and optimizer.decay_steps" if settings.optimizer.decay_steps else ""
        logger.info(told, workdir, begin.step, too)
        return True
    return False


def _run_from(trainable: Trainable, loop_with: Callable[..., Loop], begin: _Begin) -> TrainState:
    """The state after the last step; arguments and errors as `Loop.run`."""
    settings, engine = trainable.settings, trainable.engine
    traced, last = settings.logging.profile_steps, settings.train.num_steps
    with trainable.log(begin.step) as log:
        profiler = Profiler(trainable.workdir / PROFILE, begin.step + 1, traced)
        loop = loop_with(log=log, profiler=profiler, patience=begin.patience)
        state = engine.from_portable(begin.take())
        return engine.to_portable(loop.run(state, begin.step, last, evaluate_start=begin.evaluate))


def _with_rewinds(
    run_from: Callable[[_Begin], TrainState],
    begin: _Begin,
    back: Callable[[], _Begin],
    clock: GoodputTimer,
) -> TrainState:
    """What `run_from` returns, from wherever training went `back` to; DivergedError where it went
    back to one step too often."""
    times: Counter[int] = Counter()
    while True:
        try:
            return run_from(begin)
        except SpikedError as error:
            spiked = error
        with clock.measure("rewinding"):
            begin = back()
        times[begin.step] += 1
        if times[begin.step] > _MOST_REWINDS:
            raise DivergedError(
                f"{spiked}, the {times[begin.step]}th time behind step {begin.step}, and every "
                "time with other data: in a new workdir, lower optimizer.learning_rate or raise "
                "train.spike_factor"
            )
        told = "%s; it goes back to step %d, and on with the data that comes next"
        logger.warning(told, spiked, begin.step)


def _tell_attention(asked: str, choices: Sequence[KernelChoice]) -> None:
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


def _every(settings: Settings) -> Intervals:
    return Intervals(
        log=settings.logging.every_steps,
        evaluate=settings.eval.every_steps,
        save=settings.checkpoint.every_steps,
    )
