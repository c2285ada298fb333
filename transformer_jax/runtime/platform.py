"""What the device that programs are compiled for can do; the one place that asks which it is."""

import functools
import time
from pathlib import Path

import jax
import jax.numpy as jnp

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
"""Peak FLOPs a second of dense 16-bit products, as stated by the makers, by the start of
`device_kind`."""


def peak_flops(device: jax.Device, dtype: jnp.dtype) -> float | None:
    """Peak FLOPs a second of a device; None if its kind is not known.

    For a CPU it is measured with products in `dtype`, on all cores at once.
    """
    if device.platform == "cpu":
        return _measured_peak(dtype)
    known = [peak for kind, peak in PEAK_FLOPS.items() if device.device_kind.startswith(kind)]
    return known[0] if known else None


def peak_of_job(dtype: jnp.dtype) -> float | None:
    """Peak FLOPs a second of all devices of the job; None if their kind is not known."""
    device = jax.devices()[0]
    peak = peak_flops(device, dtype)
    # All CPU devices of a process share its cores.
    count = jax.process_count() if device.platform == "cpu" else jax.device_count()
    return peak and peak * count


def is_cpu() -> bool:
    """Whether programs are compiled for the CPU."""
    return jax.default_backend() == "cpu"


def has_bfloat16_products() -> bool:
    """Whether the hardware multiplies bfloat16 matrices: GPU, TPU, and CPUs with AMX."""
    return not is_cpu() or _is_cpu_with_amx()


def compiler_options() -> dict[str, bool]:
    """XLA options for programs with large products: `jax.jit(..., compiler_options=)`.

    On a CPU with AMX, oneDNN runs the transposed bfloat16 products of the backward pass four times
    faster than XLA. Without AMX it would fall back to a reference loop, a thousand times slower, so
    the option stays off. Searches do not use it: oneDNN is slower for their small products, and
    its kernel for LayerNorm is several times slower than XLA's.
    """
    option = {"xla_cpu_experimental_onednn_custom_call": True}
    return option if _is_cpu_with_amx() and _compiler_knows(tuple(option.items())) else {}


@functools.cache
def _is_cpu_with_amx() -> bool:
    if not is_cpu():
        return False
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "amx_bf16" in cpuinfo.read_text()


@functools.cache
def _compiler_knows(options: tuple[tuple[str, bool], ...]) -> bool:
    """Whether this release of jaxlib has these options; compiling with an unknown one fails."""
    try:
        jax.jit(lambda x: x + 1, compiler_options=dict(options)).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _measured_peak(dtype: jnp.dtype) -> float:
    size = 1024
    ones = jnp.ones((size, size), dtype)
    product = jax.jit(jnp.matmul).lower(ones, ones).compile()
    seconds = []
    for _ in range(8):
        start = time.perf_counter()
        product(ones, ones).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)
