# SPDX-License-Identifier: Apache-2.0
"""Profiling: traces of some steps, FLOPs of the model, and hardware utilization.

Model FLOPs utilization (MFU; Chowdhery et al. 2022) counts multiplications and additions in the
matrix products of the model's forward and backward pass, padding and masked attention included.
"""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
from jax.extend.core import Jaxpr, Literal, Var, jaxprs_in_params
from jax.sharding import Mesh

from transformer_jax.nn.grouped_product import count_without_padding
from transformer_jax.nn.ops import product_dtype
from transformer_jax.parallel.engines import CompiledStep
from transformer_jax.runtime.platform import peak_flops
from transformer_jax.tasks.interface import Frozen, Task
from transformer_jax.tasks.teachers import ModelTeacher

logger = logging.getLogger(__name__)

_WARM_UP = 10  # steps not traced at the start: they compile and fill buffers


class Profiler:
    """Writes a trace of `num_steps` steps, soon after the `first` one of this process."""

    def __init__(self, directory: Path, first: int, num_steps: int):
        self._directory = directory
        self._begin = first + _WARM_UP
        self._end = self._begin + num_steps
        self._running = False

    def before_step(self, step: int) -> None:
        """Starts or ends the trace. Call it before each step is dispatched."""
        if self._begin == step < self._end:
            jax.profiler.start_trace(self._directory)
            self._running = True
        elif step == self._end:
            self.close()

    def close(self) -> None:
        """Ends the trace if it is still running."""
        if self._running:
            jax.profiler.stop_trace()
            self._running = False
            logger.info("the trace of %d steps is in %s", self._end - self._begin, self._directory)


class Products(NamedTuple):
    """Size of the matrix products of a program.

    Attributes:
      flops: multiplications and additions of all products.
      largest: bytes of the largest result.
    """

    flops: int
    largest: int


def count_products(function: Callable[..., Any], *abstract: Any) -> Products:
    """Counts the matrix products of one call, without those of padding in experts' blocks."""
    with count_without_padding():
        return _count(jax.make_jaxpr(function)(*abstract).jaxpr)


_PRODUCTS = {
    "dot_general": "dimension_numbers",
    "ragged_dot_general": "ragged_dot_dimension_numbers",  # each row meets one of the matrices
}
"""Primitives of matrix products, and the parameter with the axes that they contract."""


def _count(jaxpr: Jaxpr) -> Products:
    flops = 0
    largest = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name in _PRODUCTS:
            numbers = equation.params[_PRODUCTS[equation.primitive.name]]
            (contracted, _), _ = getattr(numbers, "dot_dimension_numbers", numbers)
            sizes = _array(equation.invars[0]).shape
            product = _array(equation.outvars[0])
            flops += 2 * math.prod(sizes[axis] for axis in contracted) * math.prod(product.shape)
            largest = max(largest, math.prod(product.shape) * product.dtype.itemsize)
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for inner in map(_count, jaxprs_in_params(equation.params)):
            flops += times * inner.flops
            largest = max(largest, inner.largest)
    return Products(flops, largest)


def _array(variable: Var | Literal) -> jax.core.ShapedArray:
    return cast(jax.core.ShapedArray, variable.aval)


def step_products(task: Task, params: Any, batch: Any, frozen: Frozen) -> Products:
    """Counts the model's matrix products in a training step, with both passes of R-Drop.

    For each product of the forward pass, the backward pass has two of the same size, one for each
    operand, also where an operand is frozen; a teacher has a forward pass alone. `largest` is that
    of the forward pass. A token counts the products that it needs: with experts, those of the
    chosen ones.
    """
    key = jax.eval_shape(jax.random.key, 0)
    forward = count_products(task.loss, params, batch, key, frozen)
    taught = 0
    teacher = getattr(getattr(task, "loss_options", None), "teacher", None)
    if isinstance(teacher, ModelTeacher):
        taught = count_products(teacher.task.loss, frozen["teacher"], batch, None, {}).flops
    return Products(3 * forward.flops - 2 * taught, forward.largest)


def step_bytes(step: CompiledStep) -> int:
    """Bytes of the buffers of a compiled step, beside its arguments and results; 0: unknown."""
    memory = step.executable.memory_analysis()
    return memory.temp_size_in_bytes if memory else 0


def utilization(
    flops: int, dtype: str, step: CompiledStep, mesh: Mesh
) -> Callable[[float], dict[str, float]]:
    """Makes a function from the seconds of a step to metrics of hardware utilization.

    The metrics are "mfu" (FLOPs of the model relative to the peak of the mesh, of accelerators
    alone) and "xla_flops_per_s" (FLOPs of the compiled step, as XLA counts them), if they are
    known. Replicas may use some devices of the machine alone.
    """
    peak = peak_flops(mesh.devices.flat[0], product_dtype(dtype))
    device_flops = (step.executable.cost_analysis() or {}).get("flops")

    def metrics_of(seconds: float) -> dict[str, float]:
        metrics = {}
        if peak:
            metrics["mfu"] = flops / (seconds * peak * mesh.size)
        if device_flops:
            metrics["xla_flops_per_s"] = device_flops * mesh.size / seconds
        return metrics

    return metrics_of
