"""How much memory there is, and the refusal of what cannot fit before it is allocated."""

import os
import resource
from pathlib import Path

import jax

from transformer_jax.errors import UserError
from transformer_jax.runtime import platform

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
        where = "this machine" if platform.is_cpu() else "a device here"
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
    if platform.is_cpu():
        return host_memory()
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def devices_that_share() -> int:
    """Devices of this process that have one memory."""
    return jax.local_device_count() if platform.is_cpu() else 1


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
