"""A trace of some steps, for TensorBoard's profiler or Perfetto."""

import logging
from pathlib import Path

import jax

logger = logging.getLogger(__name__)

_WARM_UP = 10  # steps of a start that are left out: the first ones compile and fill buffers


class Profiler:
    """Writes a trace of the steps after the first few of this start.

    Args:
      directory: where traces go.
      first: the step that this start begins with.
      num_steps: how many steps to trace; 0: none.
    """

    def __init__(self, directory: Path, first: int, num_steps: int):
        self._directory = directory
        self._begin = first + _WARM_UP
        self._end = self._begin + num_steps
        self._running = False

    def before(self, step: int) -> None:
        """To be called before each step is dispatched."""
        if self._begin == step < self._end:
            jax.profiler.start_trace(self._directory)
            self._running = True
        elif step == self._end:
            self.close()

    def close(self) -> None:
        """Ends the trace, if it still runs."""
        if self._running:
            jax.profiler.stop_trace()
            self._running = False
            logger.info("the trace of %d steps is in %s", self._end - self._begin, self._directory)
