"""How much of the hardware a step uses: its products' FLOPs against the peak of the devices.

MFU (Chowdhery et al. 2022) counts what the model asks for, not what the compiler makes of it: the
multiplications and additions of the matrix products of the forward and backward pass, padding and
masked attention included.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params

PEAK_FLOPS = {
    "NVIDIA B200": 2250e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100": 989e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
    "Tesla V100": 125e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v4": 275e12,
    "TPU v3": 61.5e12,  # a core; a chip has two
    "TPU v2": 22.5e12,
}
"""Dense 16-bit products a second by the start of a device's kind, as the makers state them."""


def peak_flops(device: jax.Device, dtype: jnp.dtype) -> float | None:
    """The most products a second that a device makes; None if its kind is not known.

    Of a CPU it is measured, all cores at once, in `dtype`.
    """
    if device.platform == "cpu":
        return _measured_peak(dtype)
    known = [peak for kind, peak in PEAK_FLOPS.items() if device.device_kind.startswith(kind)]
    return known[0] if known else None


def peak_of_job(dtype: jnp.dtype) -> float | None:
    """The peak of all devices of the job together; None if their kind is not known."""
    device = jax.devices()[0]
    peak = peak_flops(device, dtype)
    # However many devices a CPU is divided into, it has one set of cores a process.
    count = jax.process_count() if device.platform == "cpu" else jax.device_count()
    return peak and peak * count


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


def _measured_peak(dtype) -> float:
    size = 1024
    ones = jnp.ones((size, size), dtype)
    product = jax.jit(jnp.matmul).lower(ones, ones).compile()
    seconds = []
    for _ in range(8):
        start = time.perf_counter()
        product(ones, ones).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)
