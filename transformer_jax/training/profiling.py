"""What a step costs: a trace of some steps, and how much of the hardware they use.

MFU (Chowdhery et al. 2022) counts what the model asks for, not what the compiler makes of it: the
multiplications and additions of the matrix products of the forward and backward pass, padding and
masked attention included.
"""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

from transformer_jax.nn.products import product_dtype
from transformer_jax.parallel.engines import CompiledStep
from transformer_jax.runtime.platform import peak_of_job
from transformer_jax.tasks.interface import Task

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


def product_flops(function: Callable, *abstract: Any) -> int:
    """Multiplications and additions in the matrix products of one call.

    Args:
      function: of arrays, without loops of unknown length.
      abstract: its arguments, or their shapes.
    """
    return _count(jax.make_jaxpr(function)(*abstract).jaxpr)


def _count(jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            sizes = equation.invars[0].aval.shape
            inner = math.prod(sizes[axis] for axis in contracted)
            total += 2 * inner * math.prod(equation.outvars[0].aval.shape)
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += times * sum(map(_count, jaxprs_in_params(equation.params)))
    return total


def step_flops(task: Task, params: Any, batch: Any) -> int:
    """What the model asks of a training step: each product of the forward pass has two of its size
    in the backward pass, one for each operand.

    Args:
      task: with its model.
      params: their shapes.
      batch: the shapes of its arrays.
    """
    loss = lambda params, batch: task.loss(params, batch, None)  # noqa: E731
    return 3 * product_flops(loss, params, batch)


def utilization(flops: int, dtype: str, step: CompiledStep):
    """Seconds of a step -> "mfu" (products over the devices' peak) and "xla_flops_per_s" (all that
    the compiled step does, as XLA counts it); without what is not known.

    Args:
      flops: of the model's products, all replicas together.
      dtype: the config's `model.dtype`.
      step: compiled.
    """
    peak = peak_of_job(product_dtype(dtype))
    of_device = (step.executable.cost_analysis() or {}).get("flops")

    def metrics(seconds: float) -> dict[str, float]:
        known = {"mfu": peak and flops / (seconds * peak)}
        known["xla_flops_per_s"] = of_device and of_device * jax.device_count() / seconds
        return {name: value for name, value in known.items() if value}

    return metrics
