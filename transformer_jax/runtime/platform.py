"""What the device that programs are compiled for can do; the one place that asks which it is."""

import dataclasses
import functools
import os
import resource
import time
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

import jax
import jax.numpy as jnp

from transformer_jax.errors import UserError
from transformer_jax.runtime.accelerators import accelerator_of
from transformer_jax.runtime.files import cache_folder

_target = jax.make_user_context(None)  # part of the key of what jit keeps, as is the next
_sharing = jax.make_user_context(1)


@dataclasses.dataclass(frozen=True)
class DeviceKind:
    """A kind of device that programs are compiled for.

    Attributes:
      platform: "cpu", "gpu" or "tpu".
      kind: JAX's `device_kind`.
      capability: compute capability, as CUDA writes it ("9.0"); "" of other devices.
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
    """A context: what is traced inside it is compiled for devices like this one, which need not be
    here. Outside it is for those of the job."""
    target = DeviceKind.of(device)
    return _target(None if target == _of_the_job() else target)


def target() -> DeviceKind:
    """The kind of device that the program which is traced now is compiled for."""
    return _target.value or _of_the_job()


def _of_the_job() -> DeviceKind:
    chosen = jax.config.jax_default_device
    return DeviceKind.of(chosen if isinstance(chosen, jax.Device) else jax.devices(chosen)[0])


def shared_by(devices: int) -> AbstractContextManager[None]:
    """A context: batches and parameters of what is traced inside it are divided among so many
    devices."""
    return _sharing(devices)


def sharing_devices() -> int:
    """The devices that divide among them the arrays of what is traced now: each holds its part of a
    batch's rows, or of the vocabulary."""
    return _sharing.value


def require_device() -> None:
    """Starts JAX's devices; UserError where there is none, or none of the kind asked for."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter where a plugin is missing
        asked = os.environ.get("JAX_PLATFORMS", "")
        reason = (str(error) or f"there is no plugin for {asked}").splitlines()[0]
        raise UserError(f"JAX_PLATFORMS={asked} cannot be used: {reason}") from error


def peak_flops(device: jax.Device, dtype: jnp.dtype) -> float | None:
    """Peak FLOPs a second of a device; None if its kind is not known.

    For a CPU it is measured with products in `dtype`, on all cores at once.
    """
    if device.platform == "cpu":
        return _measured_peak(dtype)
    known = accelerator_of(device.device_kind)
    return known.peak(jnp.dtype(dtype).name) if known else None


def peak_of_job(dtype: jnp.dtype) -> float | None:
    """Peak FLOPs a second of all devices of the job; None if their kind is not known."""
    device = jax.devices()[0]
    peak = peak_flops(device, dtype)
    # All CPU devices of a process share its cores.
    count = jax.process_count() if device.platform == "cpu" else jax.device_count()
    return peak and peak * count


def memory() -> int:
    """Bytes of memory that the device has; of a CPU, the machine's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return stats.get("bytes_limit", machine)


def is_cpu() -> bool:
    """Whether programs are compiled for the CPU."""
    return target().platform == "cpu"


def has_bfloat16_products() -> bool:
    """Whether the hardware multiplies bfloat16 matrices: TPU, NVIDIA's GPUs from Ampere on, other
    GPUs, and CPUs with AMX or AVX512-BF16."""
    device = target()
    if device.platform == "cpu":
        return _is_cpu_with_bfloat16()
    if known := accelerator_of(device.kind):
        return "bfloat16" in known.peaks
    return not device.capability or float(device.capability) >= 8


def compiler_options() -> dict[str, bool]:
    """XLA options for programs with large products: `jax.jit(..., compiler_options=)`.

    On a CPU that multiplies bfloat16, oneDNN runs the transposed bfloat16 products of the backward
    pass faster than XLA: four times with AMX, twice with AVX512-BF16. Elsewhere it would fall back
    to a reference loop, a thousand times slower, so the option stays off. Searches do not use it:
    oneDNN is slower for their small products, and its kernel for LayerNorm is several times slower
    than XLA's.
    """
    if not (is_cpu() and _is_cpu_with_bfloat16()):
        return {}
    option = {"xla_cpu_experimental_onednn_custom_call": True}
    return option if _compiler_knows(tuple(option.items())) else {}


@functools.cache
def _is_cpu_with_bfloat16() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return not flags.isdisjoint(("amx_bf16", "avx512_bf16"))


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


# FOLDED runtime.compilation_cache: Compiled programs kept for the next start.


def use_compilation_cache() -> None:
    """Keeps compiled programs in the user's cache folder, readable by the user alone.

    Does nothing where the user has set a directory for JAX, or the folder cannot be written.
    Programs with oneDNN's products (`platform.compiler_options`) are not kept: jaxlib cannot
    serialize them, and JAX would warn of each.
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
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


# FOLDED runtime.memory: How much memory there is, and the refusal of what cannot fit before it is
# allocated.


_OF_CONTAINER = Path("/sys/fs/cgroup/memory.max")


def require_memory(needed: int, held: str) -> None:
    """Raises UserError where a device can never hold `needed` bytes.

    Args:
      needed: of one device; of a CPU's devices, which share the memory, of all together. A lower
        bound: what is refused could not have run.
      held: what they are for.
    """
    there = memory_of_device()
    if there is not None and needed > there:
        where = "this machine" if is_cpu() else "a device here"
        raise UserError(f"{held} need at least {_size(needed)}; {where} has {_size(there)}")


def require_memory_kind(device: jax.Device, kind: str, asked: str) -> None:
    """Raises UserError where programs for a device know no memory of a kind, as "pinned_host".

    Args:
      device: which may be described alone, and then does not say.
      kind: by the name that JAX has for it.
      asked: what asks for it.
    """
    try:
        kinds = [memory.kind for memory in device.addressable_memories()]
    except jax.errors.JaxRuntimeError:
        return
    if kind not in kinds:
        there = ", ".join(kinds) or "none that it names"
        raise UserError(
            f"{asked} keeps results in {kind} memory; {device.device_kind} has {there}: choose "
            "another"
        )


def memory_of_device() -> int | None:
    """Bytes that programs may use on a device; None where it does not say."""
    if is_cpu():
        return host_memory()
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def devices_that_share() -> int:
    """Devices of this process that have one memory."""
    return jax.local_device_count() if is_cpu() else 1


def host_memory() -> int:
    """Bytes that this process may use: the machine's, or less where it is limited."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    if (soft := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        limits.append(soft)
    if _OF_CONTAINER.is_file() and (text := _OF_CONTAINER.read_text().strip()).isdigit():
        limits.append(int(text))
    return min(limits)


def _size(count: int) -> str:
    return f"{count / 2**30:,.3g} GiB" if count < 2**40 else f"{count / 2**30:,.0f} GiB"
