# SPDX-License-Identifier: Apache-2.0
"""The training loop of a run, or of replicas of it, from its latest checkpoint on."""

import contextlib
import dataclasses
import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
from transformer_jax.runs.provenance import check_provenance
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.workdir import PROFILE
from transformer_jax.runtime import platform
from transformer_jax.runtime.platform import devices_per_memory, require_memory
from transformer_jax.runtime.preemption import watch_preemption
from transformer_jax.runtime.startup import return_large_blocks, return_unused_memory
from transformer_jax.tasks.interface import Task
from transformer_jax.tasks.losses import batch_shapes
from transformer_jax.training.diagnostics import Diagnose
from transformer_jax.training.loop import GoodputTimer, Intervals, Loop, Patience, SpikedError
from transformer_jax.training.optimizer import unfinished_decay
from transformer_jax.training.profiling import Profiler, step_bytes, step_products, utilization
from transformer_jax.training.state import OPTIONAL_FIELDS, TrainState

logger = logging.getLogger(__name__)

InitState = Callable[[Any], TrainState]
"""A seed -> the portable state before the first step."""
Scores = tuple[dict[str, Any], Any]
"""Metrics of the validation split, and the score that selects the best checkpoint (the highest);
for R replicas arrays [R]."""

_MOST_REWINDS = 10  # to the same checkpoint
_FRAGMENTS = 8
"""Copies of a step's buffers that can be in memory if freed blocks are kept; 7 were seen."""
_KEPT_SHARE = 1 / 2
"""Largest share of the machine's memory that these copies may take. A character GPT of 10.8 million
parameters, batch 64, took 21 GB with kept blocks and 5.9 GB without, in 1.2 times the CPU time."""


class Trainable(Protocol):
    """A run, or replicas of it, as the training loop uses it."""

    @property
    def settings(self) -> Settings:
        """The settings of the run, or those that all replicas share."""

    @property
    def workdir(self) -> Path:
        """The workdir, where checkpoints and profiles are written."""

    @property
    def task(self) -> Task:
        """The task, with its model."""

    @property
    def engine(self) -> Engine:
        """The engine that divides the work among devices."""

    def abstract_state(self, init_state: InitState) -> TrainState:
        """Shapes, dtypes and shardings of the state."""

    def first_state(self, init_state: InitState, abstract: TrainState) -> TrainState:
        """The portable state before the first step, without the frozen parameters."""

    def frozen(self, abstract: Mapping[str, Any]) -> dict[str, Any]:
        """Loads the frozen parameters, of these shapes."""

    def batches(self, rows: int) -> TrainBatches | StackedBatches:
        """The training data in batches of `rows` rows."""

    def log(self, start: int) -> AbstractContextManager[Log]:
        """Opens the log of metrics from step `start` on; it is closed when training ends."""

    def has_record(self, step: int, split: str) -> bool:
        """Returns True if an earlier start recorded metrics of a split at this step."""

    def scores(self, step: int) -> list[Any]:
        """Validation scores that earlier starts recorded, up to this step."""

    def learning_rate(self, schedule: Callable[[int], Any]) -> Callable[[int], Any]:
        """A function from the number of updates done to the learning rate that is logged."""

    def diagnostics(self) -> Diagnose:
        """The diagnostics of training, at intervals of their own."""

    def validation(self) -> Callable[[int, TrainState], Scores]:
        """A function (step, `TrainState.evaluated`) -> scores; UserError if the split cannot be
        evaluated."""


def fit(
    trainable: Trainable, checkpoints: Checkpoints, clock: GoodputTimer, until: int | None = None
) -> TrainState:
    """Trains from the latest checkpoint, if there is one; returns the portable state.

    If a saved step was due to be evaluated and its evaluation did not finish, it is evaluated
    before the next step is trained.

    Args:
      clock: started when the command began.
      until: the step to pause after; None: the last one.

    Raises:
      DivergedError: as `Loop.run`, or training went back to one checkpoint too often.
      Stopped: as `Loop.run`.
    """
    settings = trainable.settings
    task = trainable.task
    engine = trainable.engine
    schedule, train_step, init_state = build.build_training(settings, task, engine)
    rows = build.batch_rows(settings, task, engine.row_shards)
    batches = trainable.batches(rows)
    abstract = trainable.abstract_state(init_state)
    batch = batch_shapes(build.training_lengths(task), rows)
    single = jax.eval_shape(init_state, settings.seed)  # of one replica, or of the run
    model = step_products(task, single.model_params, batch, single.frozen)
    parts = build.micro_batches(settings, task, engine.row_shards)
    require_room(settings, abstract, engine, model.largest // parts)
    frozen = _num_parameters(single.frozen)
    beside = f", beside {frozen:,} that stay as they are" if frozen else ""
    logger.info("training %s parameters%s", f"{_num_parameters(single.params):,}", beside)
    points = _ResumePoints(trainable, checkpoints, init_state, abstract)
    point = points.latest()
    if point is not None:
        if _is_finished(trainable, point, until):
            return point.take_state()
        batches.set_state(point.data_state)
    message = unfinished_decay(settings.optimizer, settings.model.d_model, settings.train.num_steps)
    if message:
        logger.warning(message)
    validate = trainable.validation()  # before any step: it refuses a split it cannot evaluate
    logger.info("compiling the training step")
    start = time.perf_counter()
    with record_kernel_choices() as attention:
        step = engine.compile(train_step, abstract, batch)
    _log_attention(settings.model.attention, attention)
    # The step is compiled in the background, while the first state and the first batches are made.
    point = point or points.initial()
    batches.start()
    clock.attribute_rest("starting")
    with clock.measure("compiling"):
        buffers = step_bytes(step)
        step_utilization = utilization(
            engine.num_replicas * model.flops, settings.model.dtype, step
        )
    logger.info("compiled in %.1f s", time.perf_counter() - start)
    limit_kept_memory(buffers)
    make_loop = functools.partial(
        Loop,
        train_step=step,
        to_portable=engine.to_portable,
        batches=batches,
        checkpoints=checkpoints,
        evaluate=validate,
        learning_rate=trainable.learning_rate(jax.jit(schedule)),
        utilization=step_utilization,
        intervals=_intervals(settings),
        diagnostics=trainable.diagnostics(),
        timer=clock,
        callbacks=build.build_callbacks(settings, task, trainable.workdir),
        rewinds=settings.train.on_spike == "rewind",
        step_bytes=buffers,
    )
    with contextlib.closing(batches), watch_preemption(settings.parallel.preemption_notice):
        train_from = functools.partial(_train_from, trainable, make_loop, until)
        return _train_with_rewinds(train_from, point, points.after_spike, clock)


def require_room(settings: Settings, state: TrainState, engine: Engine, largest: int) -> None:
    """Raises UserError if a training step cannot fit into memory, before any is allocated.

    Args:
      state: shapes with their shardings.
      engine: divides state and rows among devices.
      largest: bytes of the largest array in the forward pass of a micro-batch, on all devices
        together.
    """
    gradient = bytes_per_device(state.params)
    activation = largest * engine.num_replicas // engine.mesh.size
    require_memory(
        devices_per_memory() * (bytes_per_device(state) + gradient + activation),
        f"config: {_num_parameters(state.params):,} parameters, with gradients, optimizer and "
        f"train.tokens_per_batch {settings.train.tokens_per_batch},",
    )


def _num_parameters(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@dataclasses.dataclass
class _ResumePoint:
    """A state to train from.

    Attributes:
      step: the number of updates done.
      state: the portable state; None after it was taken.
      patience: the patience, with the scores so far.
      data_state: the state of the data iterator; None: from the beginning.
      evaluate_first: whether the state is evaluated first, since an earlier start did not finish
        its evaluation.
    """

    step: int
    state: TrainState | None
    patience: Patience
    data_state: Any = None
    evaluate_first: bool = False

    def take_state(self) -> TrainState:
        """Returns the state and drops it here: an engine may replace it by its own copy."""
        state = self.state
        self.state = None
        assert state is not None
        return state


@dataclasses.dataclass(frozen=True)
class _ResumePoints:
    """The points where training of `trainable` can start; `abstract` is the shape of its state."""

    trainable: Trainable
    checkpoints: Checkpoints
    init_state: InitState
    abstract: TrainState

    def initial(self) -> _ResumePoint:
        """The point before the first step."""
        state = self.trainable.first_state(self.init_state, self.abstract)
        state = state.replace(frozen=self.trainable.frozen(self.abstract.frozen))
        return _ResumePoint(0, state, _patience(self.trainable.settings))

    def latest(self) -> _ResumePoint | None:
        """The latest checkpoint; None if there is none.

        Raises:
          UserError: it cannot be read, or the run was trained with other data or tokenizers then.
        """
        if self.checkpoints.latest_step() is None:
            return None
        trainable = self.trainable
        settings = trainable.settings
        snapshot = self.checkpoints.open()
        check_provenance(self.checkpoints.provenance, snapshot.provenance, trainable.workdir)
        state = snapshot.state(self.abstract.saved, OPTIONAL_FIELDS)
        state = state.replace(frozen=trainable.frozen(self.abstract.frozen))
        is_due = _intervals(settings).is_evaluated(snapshot.step, settings.train.num_steps)
        return _ResumePoint(
            snapshot.step,
            state,
            _patience(settings, trainable.scores(snapshot.step)),
            snapshot.data_state,
            evaluate_first=is_due and not trainable.has_record(snapshot.step, "valid"),
        )

    def after_spike(self) -> _ResumePoint:
        """The point to return to after a spike."""
        self.checkpoints.wait()
        return self.latest() or self.initial()


def _is_finished(trainable: Trainable, point: _ResumePoint, until: int | None) -> bool:
    """Returns True if nothing is left to train; logs that, and where training is resumed."""
    settings = trainable.settings
    workdir = trainable.workdir
    logger.info("%s continues from step %d", workdir, point.step)
    if point.patience.is_exhausted:
        message = "%s has ended at step %d, after %s; raise eval.patience for more"
        logger.info(message, workdir, point.step, point.patience)
        return True
    if point.step >= settings.train.num_steps and not point.evaluate_first:
        message = "%s has finished its %d steps; raise train.num_steps%s for more"
        too = " and optimizer.decay_steps" if settings.optimizer.decay_steps else ""
        logger.info(message, workdir, point.step, too)
        return True
    if until is not None and point.step >= until and not point.evaluate_first:
        logger.info("%s is paused at step %d", workdir, point.step)
        return True
    return False


def limit_kept_memory(buffers: int) -> None:
    """Returns the memory that compilation used on a CPU. If freed blocks that are kept for the next
    step (`keep_freed_memory`) could take more than half of the memory, large ones are returned too.

    Args:
      buffers: bytes of the buffers of a step.
    """
    if platform.is_cpu():
        return_unused_memory()
        usable = platform.usable_memory() or 0
        if _FRAGMENTS * buffers > _KEPT_SHARE * usable:
            return_large_blocks()


def _train_from(
    trainable: Trainable, make_loop: Callable[..., Loop], until: int | None, point: _ResumePoint
) -> TrainState:
    """Runs the loop from a point; returns the portable state after the last step, or `until`."""
    settings = trainable.settings
    engine = trainable.engine
    with trainable.log(point.step) as log:
        profiler = Profiler(
            trainable.workdir / PROFILE, point.step + 1, settings.logging.profile_steps
        )
        loop = make_loop(log=log, profiler=profiler, patience=point.patience)
        state = engine.from_portable(point.take_state())
        state = loop.run(
            state,
            point.step,
            settings.train.num_steps,
            until=until,
            evaluate_start=point.evaluate_first,
        )
        return engine.to_portable(state)


def _train_with_rewinds(
    train_from: Callable[[_ResumePoint], TrainState],
    point: _ResumePoint,
    after_spike: Callable[[], _ResumePoint],
    clock: GoodputTimer,
) -> TrainState:
    """Trains from a point; after each spike again from the latest checkpoint, with other data.

    Raises:
      DivergedError: training went back to one step too often.
    """
    times: Counter[int] = Counter()
    while True:
        try:
            return train_from(point)
        except SpikedError as error:
            spiked = error
        with clock.measure("rewinding"):
            point = after_spike()
        times[point.step] += 1
        if times[point.step] > _MOST_REWINDS:
            raise DivergedError(
                f"{spiked}, for the {times[point.step]}th time after step {point.step}, each time "
                "with other data: in a new workdir, lower optimizer.learning_rate or raise "
                "train.spike_factor"
            )
        message = "%s; training goes back to step %d and continues with the data that comes next"
        logger.warning(message, spiked, point.step)


def _log_attention(requested: str, choices: Sequence[KernelChoice]) -> None:
    """Logs the attention kernel of the step and the reason for it.

    Raises:
      UserError: it is not the requested kernel.
    """
    for choice in choices:
        if requested not in ("auto", choice.name):
            raise UserError(
                f"config.model.attention is {requested!r}, but {choice.reason}; set it to auto or "
                "plain"
            )
        if choice.reason or choice.kernel is not None:
            logger.info("attention: %s", choice)


def _patience(settings: Settings, scores: Sequence[Any] = ()) -> Patience:
    optimizer = settings.optimizer
    return Patience(
        settings.eval.patience, optimizer.plateau_patience, optimizer.plateau_factor, scores
    )


def _intervals(settings: Settings) -> Intervals:
    return Intervals(
        log=settings.logging.every_steps,
        evaluate=settings.eval.every_steps,
        save=settings.checkpoint.every_steps,
    )
