"""The training loop."""

import contextlib
import dataclasses
import functools
import logging
import math
import operator
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.data.batches.pipeline import StackedBatches, TrainBatches
from transformer_jax.errors import DivergedError, Stopped
from transformer_jax.logs.run_log import Log
from transformer_jax.metrics import add_sums, metrics_of
from transformer_jax.parallel import hosts
from transformer_jax.runtime import platform
from transformer_jax.training.diagnostics import WATCH, Diagnostics
from transformer_jax.training.profiling import Profiler
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import Sums

# FOLDED training.clock: Where the time of a training goes.


class GoodputTimer:
    """Runs from the moment it is made; what it is not told of counts as steps."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._spent: dict[str, float] = {}

    @contextlib.contextmanager
    def on(self, what: str) -> Iterator[None]:
        """What runs in this context is not steps."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent[what] = self._spent.get(what, 0.0) + time.perf_counter() - start

    def had(self, what: str) -> None:
        """Whatever has run so far, and was not told of, was this."""
        so_far = time.perf_counter() - self._began - sum(self._spent.values())
        self._spent[what] = self._spent.get(what, 0.0) + so_far

    def shares(self) -> dict[str, float]:
        """Parts of the time so far: "goodput", that of steps, and "share_WHAT" for all else."""
        total = time.perf_counter() - self._began
        shares = {f"share_{what}": seconds / total for what, seconds in self._spent.items()}
        return {"goodput": 1 - sum(shares.values()), **shares}


# FOLDED training.meter: What the steps of a training add up to, between two records of it.


_MOST_SKIPPED = 50
"""Updates skipped one after another, after which no more are tried."""


class SpikedError(Exception):
    """The gradient spiked, and training is to go back to its last checkpoint."""


class Meter:
    """Adds up the sums of steps, read late: no accelerator waits, and a CPU holds two steps.

    Args:
      clock: told what the pauses are for.
      rewinds: whether a skipped step raises `SpikedError`.
    """

    def __init__(self, clock: GoodputTimer, rewinds: bool = False) -> None:
        self._clock, self._rewinds, self._skipped_in_a_row = clock, rewinds, 0
        self._pending: deque[tuple[int, Any]] = deque()
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, Any] = {}
        self._steps = 0
        self._since = time.perf_counter()

    def push(self, step: int, sums: Any) -> None:
        """Takes the sums of a step just dispatched, and reads those of one or two steps before.

        Raises:
          DivergedError: those are not finite; of replicas, none are. Or too many were skipped.
          SpikedError: one was, and the meter `rewinds`.
        """
        self._pending.append((step, sums))
        self._settle(late=1 if platform.is_cpu() else 2)

    def read(self) -> dict[str, Any]:
        """The metrics of the steps since the last reading."""
        self._settle()
        seconds = time.perf_counter() - self._since
        skipped = self._sums.get("skipped")
        with np.errstate(invalid="ignore"):  # 0 / 0 where all steps were skipped
            metrics = metrics_of(self._sums) | {
                "grad_norm": self._sums["grad_norm"] / (self._steps - (skipped or 0)),
                "tokens_per_s": self._sums["filled"] / seconds,
                "step_ms": 1e3 * seconds / self._steps,
            }
        if skipped is not None:
            metrics["skipped"] = skipped
        self._clear()
        return metrics

    @contextlib.contextmanager
    def paused(self, what: str) -> Iterator[None]:
        """Stops the time of the steps for something else, once the last step is known to be
        finite."""
        self._settle()
        start = time.perf_counter()
        with self._clock.on(what):
            yield
        self._since += time.perf_counter() - start

    def _settle(self, late: int = 0) -> None:
        while len(self._pending) > late:
            step, sums = self._pending.popleft()
            sums = jax.device_get(sums)
            self._sums = add_sums(self._sums, sums)
            self._steps += 1
            self._note_skipped(step, sums.get("skipped"))
            if not np.isfinite(self._sums["loss"] + self._sums["grad_norm"]).any():
                raise DivergedError(
                    f"the loss or its gradient is not finite at step {step}; nothing of it was "
                    "saved: in a new workdir, lower optimizer.learning_rate or set clip_norm"
                )

    def _note_skipped(self, step: int, skipped: Any) -> None:
        """Raises as `push` where a step was skipped."""
        if not np.all(skipped):  # None where none is looked for
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


# FOLDED training.patience: What follows from validation scores that no longer rise.


class Patience:
    """When training ends early, and how far the learning rate has been lowered.

    Args:
      ends_after: so many evaluations without a better score end the training; None: none do.
      lowers_after: so many since the best score, or since the rate was last lowered, lower the
        learning rate; None: none do.
      factor: of the learning rate each time.
      scores: of earlier evaluations of the run, in their order.

    Attributes:
      rate: factor of the learning rate by now.
    """

    def __init__(
        self,
        ends_after: int | None = None,
        lowers_after: int | None = None,
        factor: float = 0.5,
        scores: Iterable[float] = (),
    ):
        self.ends_after, self.lowers_after, self._factor = ends_after, lowers_after, factor
        self.rate = 1.0
        self._best, self._waited, self._at_rate = -math.inf, 0, 0
        for score in scores:
            self.add(score)

    def add(self, score: float) -> None:
        """Takes the score of an evaluation; one that is not a number is no better."""
        if score > self._best:
            self._best, self._waited, self._at_rate = score, 0, 0
            return
        self._waited, self._at_rate = self._waited + 1, self._at_rate + 1
        if self._at_rate == self.lowers_after:
            self.rate, self._at_rate = self.rate * self._factor, 0

    def __str__(self) -> str:
        return f"{self._waited} evaluations without a better score"

    @property
    def exhausted(self) -> bool:
        """Whether training ends."""
        return self.ends_after is not None and self._waited >= self.ends_after


logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Updates between two records of training metrics, two evaluations, two checkpoints.

    All three also happen at the last update.
    """

    log: int
    evaluate: int
    save: int

    def evaluates(self, step: int, num_steps: int) -> bool:
        """Whether the state after this update is evaluated."""
        return step == num_steps or step % self.evaluate == 0


@dataclasses.dataclass(frozen=True)
class Loop:
    """Steps, and what happens between them: of one run, or of R replicas whose metrics are [R].

    Attributes:
      train_step: compiled, (state, batch) -> (state, sums).
      portable: the state that `train_step` carries, or a part -> as it is evaluated and saved.
      batches: the data, this process's rows.
      log: where metrics go.
      checkpoints: where the state goes.
      evaluate: (step, params) -> (metrics, the score that the best checkpoint has most of).
      learning_rate: of a number of updates done; [R] where replicas differ in it.
      utilization: seconds of a step -> metrics of how much of the hardware it used.
      profiler: traces some of the steps.
      every: how often to record, evaluate and save.
      patience: with scores that no longer rise.
      watch: looks at the training now and then.
      clock: knows what the time goes into.
      rewinds: whether a skipped step ends the training, to go on from an earlier one.
    """

    train_step: Callable[[TrainState, Any], tuple[TrainState, Sums]]
    to_portable: Callable[[Any], Any]
    batches: TrainBatches | StackedBatches
    log: Log
    checkpoints: Checkpoints
    evaluate: Callable[[int, Any], tuple[dict[str, Any], float]]
    learning_rate: Callable[[int], Any]
    utilization: Callable[[float], dict[str, float]]
    profiler: Profiler
    every: Intervals
    patience: Patience
    watch: Diagnostics
    clock: GoodputTimer
    rewinds: bool = False

    def run(
        self, state: TrainState, start: int, num_steps: int, *, evaluate_start: bool = False
    ) -> TrainState:
        """Trains from update `start` to `num_steps`; the state is then saved.

        Where patience ends it ends earlier. A step that is both saved and evaluated is saved first:
        neither an error nor a kill during the evaluation loses a step.

        Args:
          state: after update `start`, in the form that `train_step` carries.
          start: updates done.
          num_steps: updates to have done in the end.
          evaluate_start: evaluate that state first: it was saved, but its evaluation did not end.

        Raises:
          Stopped: after a SIGTERM, as soon as the state of the step that it came in is saved.
          DivergedError: the loss is no longer finite; of replicas, no loss is. Nothing of that step
            is saved. Or too many steps were skipped.
          SpikedError: a step was skipped, and `rewinds`.
        """
        meter = Meter(self.clock, self.rewinds)
        stopped = False
        with hosts.catch_sigterm() as stop_at:
            if evaluate_start:
                self._evaluate(start, state, meter, saved=True)
            state = self._at_rate(state)
            for step in range(start + 1, num_steps + 1):
                if self.patience.exhausted:
                    logger.info("training ends before step %d: %s", step, self.patience)
                    break
                self.profiler.before(step)
                with self.clock.on("data"):
                    rows = next(self.batches)
                if self.watch.due(step):
                    self._watch(step, state, rows, meter)
                state, sums = self.train_step(state, rows)
                meter.push(step, sums)
                self.log.advance(step)
                stopped = stop_at(step)
                last = stopped or step == num_steps
                if last or step % self.every.log == 0:
                    self._record(step, meter)
                evaluated = self.every.evaluates(step, num_steps)
                may_end = evaluated and self.patience.ends_after is not None
                if saved := last or may_end or step % self.every.save == 0:
                    self._save(step, state, meter)
                if stopped:
                    break
                if evaluated:
                    self._evaluate(step, state, meter, saved)
                    state = self._at_rate(state)
            self.profiler.close()
            self.checkpoints.wait()
        if stopped:
            raise Stopped(f"stopped by SIGTERM at step {step}, saved; the same command goes on")
        return state

    def _at_rate(self, state: TrainState) -> TrainState:
        """With the learning rate that the scores ask for."""
        if state.rate is None:
            return state
        rate = np.full(state.rate.shape, self.patience.rate, np.float32)
        return state.replace(rate=jax.device_put(rate, state.rate.sharding))

    def _record(self, step: int, meter: Meter) -> None:
        metrics = meter.read()
        metrics |= self.utilization(metrics["step_ms"] / 1e3)
        metrics |= self.clock.shares()
        metrics["learning_rate"] = self.learning_rate(step - 1) * self.patience.rate
        if np.any(self.batches.overlong):
            metrics |= {"overlong": self.batches.overlong, "seen": self.batches.seen}
        self.log.record(step, "train", metrics)

    def _watch(self, step: int, state: TrainState, rows: Any, meter: Meter) -> None:
        with meter.paused("watching"):
            self.log.record(step, WATCH, self.watch(self.to_portable(state), rows))

    def _save(self, step: int, state: TrainState, meter: Meter) -> None:
        with meter.paused("saving"):
            streams = functools.reduce(operator.or_, hosts.gather(self.batches.get_state()))
            self.checkpoints.save(step, self.to_portable(state).saved, streams)

    def _evaluate(self, step: int, state: TrainState, meter: Meter, saved: bool) -> None:
        with meter.paused("evaluating"):
            metrics, score = self.evaluate(step, self.to_portable(state.model_params))
            self.patience.add(score)
            if saved:
                self.checkpoints.score(step, score)
            # Last: that the record is there says that the evaluation ended.
            self.log.record(step, "valid", metrics)
