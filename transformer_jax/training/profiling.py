# SPDX-License-Identifier: Apache-2.0
"""Profiling: traces of some steps, FLOPs of the model, and hardware utilization.

Model FLOPs utilization (MFU; Chowdhery et al. 2022) counts multiplications and additions in the
matrix products of the model's forward and backward pass, padding and masked attention included. A
frozen matrix has no gradient, so it has no product in the backward pass.
"""

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var, jaxprs_in_params
from jax.sharding import Mesh

from transformer_jax.nn.grouped_product import without_padding
from transformer_jax.nn.ops import product_dtype
from transformer_jax.parallel.engines import CompiledStep
from transformer_jax.runtime.platform import peak_flops
from transformer_jax.tasks.interface import Task
from transformer_jax.training.optimizer import stop_frozen_gradients
from transformer_jax.training.state import TrainState

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
      backward: as `flops`, of the products in the backward pass: one of the same size for each
        operand that has a gradient.
    """

    flops: int
    largest: int
    backward: int


def count_products(function: Callable[..., Any], params: Any, *abstract: Any) -> Products:
    """Counts the matrix products of one call, without those of padding in experts' blocks. The
    first argument alone has gradients."""
    with without_padding(True):
        jaxpr = jax.make_jaxpr(function)(params, *abstract).jaxpr
    num_params = len(jax.tree.leaves(params))
    return _count(jaxpr, [i < num_params for i in range(len(jaxpr.invars))])[0]


_PRODUCTS = {
    "dot_general": "dimension_numbers",
    "ragged_dot_general": "ragged_dot_dimension_numbers",  # each row meets one of the matrices
}
"""Primitives of matrix products, and the parameter with the axes that they contract."""


def _count(jaxpr: Jaxpr, has_gradient: Sequence[bool]) -> tuple[Products, list[bool]]:
    """Counts the products, given which inputs have a gradient; returns which outputs have one."""
    flops = 0
    largest = 0
    backward = 0
    known = {x for x, flag in zip(jaxpr.invars, has_gradient, strict=True) if flag}
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        inputs = [isinstance(x, Var) and x in known for x in equation.invars]
        outputs = [any(inputs) and name != "stop_gradient"] * len(equation.outvars)
        if name in _PRODUCTS:
            numbers = equation.params[_PRODUCTS[name]]
            (contracted, _), _ = getattr(numbers, "dot_dimension_numbers", numbers)
            sizes = _array(equation.invars[0]).shape
            product = _array(equation.outvars[0])
            size = 2 * math.prod(sizes[axis] for axis in contracted) * math.prod(product.shape)
            flops += size
            backward += size * sum(inputs)
            largest = max(largest, math.prod(product.shape) * product.dtype.itemsize)
        times = equation.params.get("length", 1) if name == "scan" else 1
        for inner in jaxprs_in_params(equation.params):
            is_same = len(inner.invars) == len(inputs)
            flags = [*inputs] if is_same else [any(inputs)] * len(inner.invars)
            products, results = _count(inner, flags)
            carried = _carried(equation, inner) if name == "scan" else ()
            while any(results[out] > flags[into] for into, out in carried):
                for into, out in carried:  # it has a gradient if it has one after some iteration
                    flags[into] |= results[out]
                products, results = _count(inner, flags)
            if len(results) == len(outputs):
                outputs = results
            flops += times * products.flops
            backward += times * products.backward
            largest = max(largest, products.largest)
        known |= {
            x
            for x, flag in zip(equation.outvars, outputs, strict=True)
            if flag and jnp.issubdtype(_array(x).dtype, jnp.inexact)
        }
    has_gradients = [isinstance(x, Var) and x in known for x in jaxpr.outvars]
    return Products(flops, largest, backward), has_gradients


def _carried(scan: JaxprEqn, body: Jaxpr) -> list[tuple[int, int]]:
    """Inputs and outputs of a loop's body that are carried: all others are constants, which come
    first, or have another axis outside."""

    def num_same(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        pairs = zip(outside, inside, strict=True)
        return sum(_array(one).shape == _array(other).shape for one, other in pairs)

    count = num_same(scan.outvars, body.outvars)
    first = num_same(scan.invars, body.invars) - count
    return [(first + i, i) for i in range(count)]


def _array(variable: Var | Literal) -> jax.core.ShapedArray:
    return cast(jax.core.ShapedArray, variable.aval)


def step_products(task: Task, state: TrainState, batch: Any, frozen: str | None = None) -> Products:
    """Counts the model's matrix products in a training step, with both passes of R-Drop.

    `flops` are those of the forward and the backward pass, `largest` is that of the forward pass. A
    teacher, the base of adapters and parameters that `frozen` (`optimizer.frozen`) matches have no
    gradient. A token counts the products that it needs: with experts, those of the chosen ones.
    """

    def loss(params: Any, batch: Any, key: Any, trees: Any) -> Any:
        params = params if frozen is None else stop_frozen_gradients(frozen, params)
        return task.loss(state.replace(frozen=trees).with_base(params), batch, key, trees)

    key = jax.eval_shape(jax.random.key, 0)
    forward = count_products(loss, state.params, batch, key, state.frozen)
    return forward._replace(flops=forward.flops + forward.backward)


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
