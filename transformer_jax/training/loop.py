"""The training loop."""

import dataclasses
import functools
import logging
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.data.batches.pipeline import StackedBatches, TrainBatches
from transformer_jax.errors import Stopped
from transformer_jax.logs.run_log import Log
from transformer_jax.parallel import hosts
from transformer_jax.training.clock import Clock
from transformer_jax.training.meter import Meter
from transformer_jax.training.patience import Patience
from transformer_jax.training.profiling import Profiler
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import Sums
from transformer_jax.training.watching import WATCH, Watch

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Every:
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
    portable: Callable[[Any], Any]
    batches: TrainBatches | StackedBatches
    log: Log
    checkpoints: Checkpoints
    evaluate: Callable[[int, Any], tuple[dict[str, Any], float]]
    learning_rate: Callable[[int], Any]
    utilization: Callable[[float], dict[str, float]]
    profiler: Profiler
    every: Every
    patience: Patience
    watch: Watch
    clock: Clock
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
            self.log.record(step, WATCH, self.watch(self.portable(state), rows))

    def _save(self, step: int, state: TrainState, meter: Meter) -> None:
        with meter.paused("saving"):
            streams = functools.reduce(operator.or_, hosts.gather(self.batches.get_state()))
            self.checkpoints.save(step, self.portable(state).saved, streams)

    def _evaluate(self, step: int, state: TrainState, meter: Meter, saved: bool) -> None:
        with meter.paused("evaluating"):
            metrics, score = self.evaluate(step, self.portable(state.model_params))
            self.patience.add(score)
            if saved:
                self.checkpoints.score(step, score)
            # Last: that the record is there says that the evaluation ended.
            self.log.record(step, "valid", metrics)
