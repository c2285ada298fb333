# SPDX-License-Identifier: Apache-2.0
"""The device that programs are compiled for: kind, memory, peak FLOPs, options of the compiler.

Other modules ask here which device it is, and not JAX.
"""

import dataclasses
import functools
import hashlib
import math
import os
import resource
import time
import timeit
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from transformer_jax.errors import NoRoomError, UserError, reason_of
from transformer_jax.runtime.accelerators import accelerator_of
from transformer_jax.runtime.files import cache_folder, kept_json

_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")

ONEDNN: dict[str, bool | int | str] = {"xla_cpu_experimental_onednn_custom_call": True}
"""Option of XLA that computes products by oneDNN."""

_CPUINFO = Path("/proc/cpuinfo")
_DTYPES = ("float32", "bfloat16")
_ROWS = 256
_WIDTH = 512
_ROUNDS = 5
# Tests compile with other flags; what is measured is the processor.
_OPTIMIZED: dict[str, bool | int | str] = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_disable_hlo_passes": "",
}

# User contexts are part of the key of jit's cache.
_target = jax.make_user_context(None)
sharded_over = jax.make_user_context(1)
"""Context for tracing functions whose batches and parameters are divided among this number of
devices: each has its part of a batch's rows, or of the vocabulary. `sharded_over.value` is it."""
reproducible = jax.make_user_context(False)
"""Context for compiling functions that give the same bits in each run, if its argument is True."""


@dataclasses.dataclass(frozen=True)
class DeviceKind:
    """A kind of device that programs are compiled for.

    Attributes:
      platform: "cpu", "gpu" or "tpu".
      kind: JAX's `device_kind`.
      capability: CUDA compute capability ("9.0"); "" for other devices.
    """

    platform: str
    kind: str
    capability: str = ""

    @classmethod
    def of(cls, device: jax.Device) -> Self:
        """The kind of one device."""
        capability = getattr(device, "compute_capability", "")
        return cls(device.platform, device.device_kind, str(capability))


def compiling_for(device: jax.Device) -> AbstractContextManager[None]:
    """Context for tracing functions for devices like this one, which need not be present. Elsewhere
    functions are traced for the job's devices."""
    target = DeviceKind.of(device)
    return _target(None if target == _job_device_kind() else target)


def target() -> DeviceKind:
    """The kind of device that functions are being traced for."""
    return _target.value or _job_device_kind()


def _job_device_kind() -> DeviceKind:
    chosen = jax.config.jax_default_device
    return DeviceKind.of(chosen if isinstance(chosen, jax.Device) else jax.devices(chosen)[0])


def is_cpu() -> bool:
    """Returns True if programs are compiled for CPUs."""
    return target().platform == "cpu"


def needs_fixed_order() -> bool:
    """Returns True if programs are compiled for GPUs in `reproducible`; other devices add in a
    fixed order anyway."""
    return target().platform == "gpu" and reproducible.value


def require_device() -> None:
    """Starts JAX's devices.

    Raises:
      UserError: there is no device, or none of the kind that JAX_PLATFORMS names.
    """
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter if a plugin is missing
        platforms = os.environ.get("JAX_PLATFORMS", "")
        message = reason_of(error) if str(error) else f"there is no plugin for {platforms}"
        raise UserError(f"JAX_PLATFORMS={platforms} cannot be used: {message}") from error


def usable_cores() -> int:
    """Number of the cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def peak_flops(device: jax.Device, dtype: jnp.dtype) -> float | None:
    """Peak FLOPs per second of a device for matrix products; None if its kind is not known, as that
    of a CPU: what can be measured there depends on the load of its cores."""
    accelerator = accelerator_of(device.device_kind)
    return accelerator.peak(jnp.dtype(dtype).name) if accelerator else None


def usable_memory() -> int | None:
    """Bytes that programs may use on a device; None if the device does not say.

    For CPUs, bytes that this process may use: the machine's memory, or less if the container or the
    process (`ulimit -v`) has a limit.
    """
    if not is_cpu():
        return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(soft)
    if _CONTAINER_LIMIT.is_file():
        text = _CONTAINER_LIMIT.read_text().strip()
        if text.isdigit():  # "max" without a limit
            limits.append(int(text))
    return min(limits)


def devices_per_memory() -> int:
    """Devices of this process that share one memory."""
    return jax.local_device_count() if is_cpu() else 1


def require_memory(needed: int, held: str) -> None:
    """Checks that a device can hold `needed` bytes, before they are allocated.

    Args:
      needed: lower bound for one device. CPU devices share their memory: for all of them together.
      held: the content, for the message.

    Raises:
      NoRoomError: the device has less memory.
    """
    usable = usable_memory()
    if usable is not None and needed > usable:
        memory = "this machine" if is_cpu() else "a device here"
        raise NoRoomError(f"{held} need at least {_size(needed)}; {memory} has {_size(usable)}")


def _size(count: int) -> str:
    return f"{count / 2**30:,.3g} GiB" if count < 2**40 else f"{count / 2**30:,.0f} GiB"


def require_memory_kind(device: jax.Device, kind: str, field: str) -> None:
    """Checks that programs for a device can use a kind of memory.

    Args:
      device: a device that is only described does not list its kinds and passes.
      kind: JAX's name of it, such as "pinned_host".
      field: the setting that needs it, for the message.

    Raises:
      UserError: the device has no such memory.
    """
    try:
        kinds = [memory.kind for memory in device.addressable_memories()]
    except jax.errors.JaxRuntimeError:
        return
    if kind not in kinds:
        listed = ", ".join(kinds) or "none that it names"
        raise UserError(
            f"{field} keeps results in {kind} memory; {device.device_kind} has {listed}: choose "
            "another"
        )


def has_bfloat16_products() -> bool:
    """Returns True if the hardware multiplies bfloat16 matrices: TPUs, NVIDIA GPUs since Ampere,
    other GPUs, and CPUs on which such products are faster (`multiplies_bfloat16`)."""
    device = target()
    if device.platform == "cpu":
        return multiplies_bfloat16()
    accelerator = accelerator_of(device.kind)
    if accelerator:
        return "bfloat16" in accelerator.peaks
    return not device.capability or float(device.capability) >= 8  # Ampere


def compiler_options() -> dict[str, bool | int | str]:
    """XLA options for programs with large products, for `jax.jit(..., compiler_options=)`.

    On CPUs with bfloat16 instructions, oneDNN computes the transposed bfloat16 products of the
    backward pass faster than XLA: four times with AMX, twice with AVX512-BF16. Elsewhere it would
    fall back to a reference loop, a thousand times slower, so the option stays off. Searches do not
    use it: oneDNN is slower for their small products, and its LayerNorm kernel is several times
    slower than XLA's.

    GPUs in `reproducible` add in a fixed order: scatters without atomics, cuDNN's backward pass of
    attention in its deterministic form, and no choice among kernels by their time. XLA refuses to
    compile what it has no such kernel for.
    """
    if needs_fixed_order():
        return {"xla_gpu_deterministic_ops": True}
    return ONEDNN if is_cpu() and multiplies_bfloat16() else {}


def compiled_method(
    *, searches: bool = False, **options: Any
) -> Callable[[Callable[..., Any]], functools.cached_property[jax.stages.Wrapped]]:
    """Decorator of a method that each object compiles once, when it is first called.

    Args:
      searches: compile without `compiler_options`.
      **options: of `jax.jit`.
    """

    def decorate(method: Any) -> functools.cached_property[jax.stages.Wrapped]:
        @functools.wraps(method)
        def compiled(owner: Any) -> jax.stages.Wrapped:
            xla = None if searches else compiler_options()
            return jax.jit(method.__get__(owner), compiler_options=xla, **options)

        return functools.cached_property(compiled)

    return decorate


def use_compilation_cache() -> None:
    """Stores compiled programs in the user's cache folder, which only the user can read.

    Does nothing if the user has set a cache directory for JAX, or the folder cannot be written.
    Programs with products or a softmax of oneDNN (`compiler_options`) are not stored: jaxlib cannot
    serialize them, and JAX's warning about each is silenced.
    """
    warnings.filterwarnings("ignore", "Error writing persistent compilation cache.*bad_alloc")
    if jax.config.jax_compilation_cache_dir:
        return
    directory = cache_folder("xla")
    if directory is None:
        return
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(directory))
    # A start has many small programs, such as those of the first state.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)


def multiplies_bfloat16() -> bool:
    """Returns True if products are faster in bfloat16, by oneDNN, than in float32.

    Instructions for bfloat16 do not settle it: their speed differs between processors, and a
    hypervisor may hide others that oneDNN needs. So a processor that has them computes the three
    products of a layer in both dtypes once, in 0.2 s; the times are kept in the user's cache.
    False if ONEDNN_MAX_CPU_ISA is set: oneDNN ends the process where that forbids instructions.
    """
    lines = processor_lines()
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split()}
    if flags.isdisjoint(("amx_bf16", "avx512_bf16")) or "ONEDNN_MAX_CPU_ISA" in os.environ:
        return False
    seconds = _kept_seconds((jaxlib.__version__, *lines))
    return seconds["bfloat16"] < seconds["float32"]


@functools.cache
def processor_lines() -> tuple[str, ...]:
    """Model name and flags of the processor; empty where the system does not list them."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return ()
    return tuple(sorted({line for line in lines if line.startswith(("model name", "flags"))}))


@functools.cache
def _kept_seconds(lines: tuple[str, ...]) -> dict[str, float]:
    """CPU seconds of the products in each dtype on the processor that `lines` describe: those of
    the user's cache, or measured now."""
    key = repr(lines)
    seconds: dict[str, float] = kept_json(
        f"processors/{hashlib.sha256(key.encode()).hexdigest()[:32]}",
        key,
        lambda: {dtype: _seconds_of_products(dtype) for dtype in _DTYPES},
    )
    return seconds


def _seconds_of_products(dtype: str) -> float:
    """CPU seconds of y = x w and of the gradients of x and w, the best of a few times; infinite if
    jaxlib cannot compile them.

    Other programs on the machine lengthen CPU time less than wall time.
    """
    options = _OPTIMIZED | (ONEDNN if dtype == "bfloat16" else {})

    @functools.partial(jax.jit, compiler_options=options)
    def products(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
        return jnp.dot(x, w), jnp.dot(dy, w.T), jnp.dot(x.T, dy)

    shapes = (_ROWS, _WIDTH), (_WIDTH, _WIDTH), (_ROWS, _WIDTH)
    arrays = [np.ones(shape, dtype) for shape in shapes]
    try:
        run = products.lower(*arrays).compile()
    except jax.errors.JaxRuntimeError:  # it does not know an option
        return math.inf

    def call() -> None:
        jax.block_until_ready(run(*arrays))

    return min(timeit.repeat(call, timer=time.process_time, number=1, repeat=_ROUNDS))
