# SPDX-License-Identifier: Apache-2.0
"""The training loop: steps, and the records, evaluations and checkpoints between them."""

import contextlib
import dataclasses
import functools
import logging
import math
import operator
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.data.batches.pipeline import StackedBatches, TrainBatches
from transformer_jax.errors import DivergedError, Interrupted, Stopped
from transformer_jax.logs.records import CHECKPOINT
from transformer_jax.logs.run_log import RunLog
from transformer_jax.metrics import add_sums, compute_metrics
from transformer_jax.nn import auxiliary
from transformer_jax.parallel import hosts
from transformer_jax.runtime import platform
from transformer_jax.training.callbacks import Callback
from transformer_jax.training.diagnostics import SPLIT, Diagnose
from transformer_jax.training.profiling import Profiler
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import Sums

logger = logging.getLogger(__name__)

_MOST_SKIPPED = 50
"""Consecutive skipped updates after which training ends."""

_ADVICE = "in a new workdir, lower optimizer.learning_rate or set clip_norm"
_ADVICE_AT_FIRST_STEP = (
    "no update was made yet, so the cause is the model, its first parameters or a kernel; "
    "in a new workdir, try model.attention=plain and model.dtype=float32"
)
_WAITS = 0.1
"""Share of the time for which steps may wait for batches without another worker."""
_LARGE_STEP = 1 << 28
"""Bytes of the buffers of a step that takes much longer than the host's work."""


class SpikedError(Exception):
    """The gradient spiked, and training should return to its last checkpoint."""


class GoodputTimer:
    """Measures how a run spends its time, from its construction on.

    Time that is not attributed to an activity is that of training steps.
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def measure(self, activity: str) -> Iterator[None]:
        """Attributes the time of the block to an activity."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[activity] += time.perf_counter() - start

    def attribute_rest(self, activity: str) -> None:
        """Attributes all time so far that has no activity yet."""
        total = time.perf_counter() - self._start
        self._seconds[activity] += total - sum(self._seconds.values())

    def shares(self) -> dict[str, float]:
        """Shares of the time so far: "goodput" of steps, and "share_ACTIVITY"."""
        total = time.perf_counter() - self._start
        shares = {f"share_{name}": seconds / total for name, seconds in self._seconds.items()}
        return {"goodput": 1 - sum(shares.values()), **shares}

    @property
    def data_seconds(self) -> float:
        """Seconds for which steps have waited for batches."""
        return self._seconds.get("data", 0.0)

    @property
    def waits_for_data(self) -> bool:
        """True if steps have waited for batches for more than a fifth of the time, after the first
        minute."""
        total = time.perf_counter() - self._start
        return total > 60 and self.data_seconds > total / 5


class Meter:
    """Adds up the sums of steps between two records.

    Sums are read late, so that devices do not wait for the host.

    Args:
      rewinds: a skipped step raises `SpikedError`.

    Attributes:
      waited_share: the share of the time between the last two records that steps waited for
        batches.
    """

    waited_share = 0.0

    def __init__(self, timer: GoodputTimer, rewinds: bool = False, step_bytes: int = 0) -> None:
        self._timer = timer
        self._rewinds = rewinds
        self._step_bytes = step_bytes
        self._skipped_in_a_row = 0
        self._pending: deque[tuple[int, Any]] = deque()
        self._warned: set[str] = set()
        self._reset()

    def push(self, step: int, sums: Any) -> None:
        """Adds the sums of a step just dispatched, and reads those of `steps_ahead` steps before.

        Raises:
          DivergedError: the sums read are not finite (for replicas: of no replica), or too many
            updates were skipped.
          SpikedError: an update was skipped, and the meter `rewinds`.
        """
        self._pending.append((step, sums))
        self._read_pending(late=steps_ahead(self._step_bytes))

    def read(self) -> dict[str, Any]:
        """Metrics of the steps since the last call. "tokens_per_s" counts the tokens that the model
        reads, source and target, without padding."""
        self._read_pending()
        seconds = time.perf_counter() - self._since
        skipped = self._sums.get("skipped")
        # A skipped step adds 0 to the norms, so the mean is over the others (0 / 0 if none).
        with np.errstate(invalid="ignore"):
            metrics = compute_metrics(self._sums) | {
                "grad_norm": self._sums["grad_norm"] / (self._steps - (skipped or 0)),
                "tokens_per_s": self._sums["filled"] / seconds,
                "step_ms": 1e3 * seconds / self._steps,
            }
        if skipped is not None:
            metrics["skipped"] = skipped
        self.waited_share = (self._timer.data_seconds - self._waited) / seconds
        self._warn(metrics)
        self._reset()
        return metrics

    def _warn(self, metrics: Mapping[str, Any]) -> None:
        """Warns once of each metric of a module that exceeds its limit."""
        for name, (limit, advice) in auxiliary.LIMITS.items():
            value = np.max(metrics.get(auxiliary.TOTAL + name, 0.0))
            if value > limit:
                message = "%s%s is %.2f: %s"
                self.warn_once(name, message, auxiliary.TOTAL, name, value, advice)

    def ignore_waiting(self) -> None:
        """Leaves the time for which steps wait until the next record out of `waited_share`."""
        self._waited = math.inf

    def warn_once(self, name: str, message: str, *args: Any) -> None:
        """Logs a warning, the first time for each name."""
        if name not in self._warned:
            self._warned.add(name)
            logger.warning(message, *args)

    @contextlib.contextmanager
    def paused(self, activity: str) -> Iterator[None]:
        """Excludes the time of the block from that of steps; first checks the last step."""
        self._read_pending()
        start = time.perf_counter()
        with self._timer.measure(activity):
            yield
        self._since += time.perf_counter() - start

    def _reset(self) -> None:
        self._sums: dict[str, Any] = {}
        self._steps = 0
        self._since = time.perf_counter()
        self._waited = self._timer.data_seconds

    def _read_pending(self, late: int = 0) -> None:
        while len(self._pending) > late:
            step, sums = self._pending.popleft()
            sums = jax.device_get(sums)
            self._sums = add_sums(self._sums, sums)
            self._steps += 1
            self._check_skipped(step, sums.get("skipped"))
            if not np.isfinite(self._sums["loss"] + self._sums["grad_norm"]).any():
                raise DivergedError(
                    f"the loss or its gradient is not finite at step {step}, which was not saved: "
                    f"{_ADVICE_AT_FIRST_STEP if step == 1 else _ADVICE}"
                )

    def _check_skipped(self, step: int, skipped: Any) -> None:
        if not np.all(skipped):  # None without spike detection
            self._skipped_in_a_row = 0
            return
        if self._rewinds:
            raise SpikedError(f"the gradient spiked at step {step}")
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row == _MOST_SKIPPED:
            raise DivergedError(
                f"{_MOST_SKIPPED} updates up to step {step} were skipped one after another: in a "
                "new workdir, lower optimizer.learning_rate or raise train.spike_factor"
            )


def steps_ahead(step_bytes: int) -> int:
    """Number of steps to dispatch before the sums of one are read.

    On a CPU each dispatched step has buffers of its own, `step_bytes`. So there is no second step
    beside a large one, for which the work of the host between two steps takes little time.
    """
    if not platform.is_cpu():
        return 2
    return 0 if step_bytes > _LARGE_STEP else 1


class Patience:
    """Ends training early, and lowers the learning rate, when validation scores stop rising.

    Scores of replicas are arrays [R]: each then has a learning rate of its own, and training ends
    when it would for all.

    Args:
      ends_after: end training after this many evaluations without a better score; None: never.
      lowers_after: lower the learning rate after this many evaluations without a better score since
        the rate was last lowered; None: never.

    Attributes:
      rate: current factor of the learning rate, or factors [R].
    """

    def __init__(
        self,
        ends_after: int | None = None,
        lowers_after: int | None = None,
        factor: float = 0.5,
        scores: Iterable[float | np.ndarray] = (),
    ):
        self.ends_after = ends_after
        self.lowers_after = lowers_after
        self._factor = factor
        self.rate: Any = 1.0
        self._best: Any = -math.inf
        self._waited: Any = 0
        self._waited_at_rate: Any = 0
        for score in scores:
            self.add(score)

    def add(self, score: float | np.ndarray) -> None:
        """Adds the score of an evaluation. NaN is no better than any score."""
        is_better = np.greater(score, self._best)
        self._best = np.where(is_better, score, self._best)
        self._waited = np.where(is_better, 0, self._waited + 1)
        self._waited_at_rate = np.where(is_better, 0, self._waited_at_rate + 1)
        if self.lowers_after is not None:
            is_lowered = self._waited_at_rate == self.lowers_after
            self.rate = np.where(is_lowered, self.rate * self._factor, self.rate)
            self._waited_at_rate = np.where(is_lowered, 0, self._waited_at_rate)

    @property
    def is_exhausted(self) -> bool:
        return self.ends_after is not None and bool(np.all(self._waited >= self.ends_after))

    def __str__(self) -> str:
        return f"{np.min(self._waited)} evaluations without a better score"


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Steps between records, evaluations and checkpoints, which also happen at the last step, and
    between diagnostics; None: none."""

    log: int
    evaluate: int
    save: int
    watch: int | None = None

    def is_evaluated(self, step: int, num_steps: int) -> bool:
        return step == num_steps or step % self.evaluate == 0

    def is_watched(self, step: int) -> bool:
        return self.watch is not None and step % self.watch == 0


@dataclasses.dataclass(frozen=True)
class Loop:
    """Trains one run, or R replicas whose metrics are arrays [R].

    Attributes:
      train_step: compiled step, (state, batch) -> (state, sums).
      to_portable: converts the state of `train_step`, or a part of it, for evaluation and
        checkpoints (`Engine.to_portable`).
      batches: training data, this process's rows.
      evaluate: (step, `TrainState.evaluated`) -> (metrics, score, or scores [R]); the best
        checkpoint has the highest score, or mean of the finite scores.
      learning_rate: steps done -> learning rate, [R] if replicas differ.
      utilization: seconds per step -> metrics of hardware utilization.
      patience: early stopping and plateaus, with the scores so far.
      rewinds: a skipped step ends training, so that the caller returns to an earlier checkpoint.
    """

    train_step: Callable[[TrainState, Any], tuple[TrainState, Sums]]
    to_portable: Callable[[Any], Any]
    batches: TrainBatches | StackedBatches
    log: RunLog
    checkpoints: Checkpoints
    evaluate: Callable[[int, TrainState], tuple[dict[str, Any], Any]]
    learning_rate: Callable[[int], Any]
    utilization: Callable[[float], dict[str, float]]
    profiler: Profiler
    intervals: Intervals
    patience: Patience
    diagnostics: Diagnose
    timer: GoodputTimer
    callbacks: Sequence[Callback] = ()
    rewinds: bool = False
    step_bytes: int = 0

    def run(
        self,
        state: TrainState,
        start: int,
        num_steps: int,
        *,
        until: int | None = None,
        evaluate_start: bool = False,
    ) -> TrainState:
        """Trains until `num_steps` steps are done or patience ends; the last state is saved.

        A step that is both saved and evaluated is saved first: an error or a kill during the
        evaluation loses no step.

        Args:
          state: state after step `start`, in the form of `train_step`.
          until: the step to pause after; its state is saved, and evaluated only if it is due.
          evaluate_start: first evaluate that state, which was saved but whose evaluation did not
            finish.

        Raises:
          Stopped: SIGTERM or an interrupt came; the state of the current step is saved.
          DivergedError: the loss is not finite (for replicas: of no replica), and that step is not
            saved; or too many steps were skipped.
          SpikedError: a step was skipped, and `rewinds` is True.
        """
        meter = Meter(self.timer, self.rewinds, self.step_bytes)
        until = num_steps if until is None else min(until, num_steps)
        stopped = False
        with hosts.catch_stops() as stops:
            if evaluate_start:
                with stops.at_once():
                    self._evaluate(start, state, meter, saved=True)
            state = self._set_rate(state)
            for step in range(start + 1, until + 1):
                if self.patience.is_exhausted:
                    logger.info("training ends before step %d: %s", step, self.patience)
                    break
                self.profiler.before_step(step)
                with self.timer.measure("data"):
                    rows = next(self.batches)
                if self.intervals.is_watched(step):
                    with meter.paused("watching"):
                        portable = self.to_portable(state)
                        self.log.record(step, SPLIT, self.diagnostics(portable, rows))
                state, sums = self.train_step(state, rows)
                meter.push(step, sums)
                self.log.advance(step)
                stopped = stops.after(step)
                last = stopped or step == until
                if last or step % self.intervals.log == 0:
                    self._record(step, meter)
                evaluated = self.intervals.is_evaluated(step, num_steps)
                # Patience may end training at any evaluation, and the last state must be saved.
                may_end = evaluated and self.patience.ends_after is not None
                saved = last or may_end or step % self.intervals.save == 0
                if saved:
                    self._save(step, state, meter)
                if stopped:
                    break
                if evaluated:
                    try:
                        with stops.at_once():
                            self._evaluate(step, state, meter, saved)
                    except (KeyboardInterrupt, Exception):  # compiled code raises another error
                        if stops.cause != hosts.INTERRUPT:
                            raise
                        stopped = True
                        if not saved:
                            self._save(step, state, meter)
                        break
                    state = self._set_rate(state)
            self.profiler.close()
            self.checkpoints.wait()
        if stopped:
            kind = Interrupted if stops.cause == hosts.INTERRUPT else Stopped
            raise kind(
                f"stopped by {stops.cause} at step {step} of {num_steps}, saved; the same command "
                "continues"
            )
        return state

    def _set_rate(self, state: TrainState) -> TrainState:
        """Sets the factor of the learning rate, which plateaus lower, in states that have one."""
        if state.rate is None:
            return state
        rate = np.full(state.rate.shape, self.patience.rate, np.float32)
        return state.replace(rate=jax.device_put(rate, state.rate.sharding))

    def _record(self, step: int, meter: Meter) -> None:
        metrics = meter.read()
        metrics |= self.utilization(metrics["step_ms"] / 1e3)
        metrics |= self.timer.shares()
        if meter.waited_share > _WAITS and self.batches.add_workers():
            meter.ignore_waiting()  # until the new workers have started
        elif self.timer.waits_for_data:
            meter.warn_once(
                "data",
                "steps wait for batches %.0f%% of the time (share_data): raise data.num_workers",
                100 * metrics["share_data"],
            )
        metrics["learning_rate"] = self.learning_rate(step - 1) * self.patience.rate
        if np.any(self.batches.overlong):
            metrics |= {"overlong": self.batches.overlong, "seen": self.batches.seen}
        batches = self.batches.digest(self._streams())
        self.log.record(step, "train", metrics | {"batches": batches} | self._newest_checkpoint())
        for callback in self._timed_callbacks(meter):
            callback.at_record(step, metrics)

    def _streams(self) -> dict[str, dict[str, int]]:
        """The position in the data: each process has that of its own streams."""
        return functools.reduce(operator.or_, hosts.gather(self.batches.get_state()))

    def _newest_checkpoint(self) -> dict[str, str]:
        """The field of a record by which the checkpoint that is on disk is tied to it."""
        newest = self.checkpoints.newest_id() if hosts.is_primary() else None
        return {CHECKPOINT: newest} if newest else {}

    def _timed_callbacks(self, meter: Meter) -> Iterator[Callback]:
        """The callbacks; until the next one is asked for, the time is that of callbacks."""
        for callback in self.callbacks:
            with meter.paused("callbacks"):
                yield callback

    def _save(self, step: int, state: TrainState, meter: Meter) -> None:
        with meter.paused("saving"):
            portable = self.to_portable(state.saved)
            self.checkpoints.save(step, portable, self._streams())
        for callback in self._timed_callbacks(meter):
            callback.at_checkpoint(step, portable)

    def _evaluate(self, step: int, state: TrainState, meter: Meter, saved: bool) -> None:
        with meter.paused("evaluating"):
            portable = self.to_portable(state.evaluated)
            metrics, score = self.evaluate(step, portable)
            self.patience.add(score)
            if saved:
                self.checkpoints.score(step, _mean_of_finite(score))
        for callback in self._timed_callbacks(meter):
            metrics |= callback.at_evaluation(step, metrics, portable.model_params) or {}
        # Last, because the record shows a resumed run that the evaluation is finished.
        self.log.record(step, "valid", metrics | self._newest_checkpoint())


def _mean_of_finite(scores: float | np.ndarray) -> float:
    finite = np.asarray(scores)[np.isfinite(scores)]
    return float(finite.mean()) if finite.size else math.nan
