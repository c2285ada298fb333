"""What the steps of a training add up to, between two records of it."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from transformer_jax.errors import DivergedError
from transformer_jax.metrics import add_sums, metrics_of
from transformer_jax.runtime import platform
from transformer_jax.training.clock import Clock

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

    def __init__(self, clock: Clock, rewinds: bool = False) -> None:
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
