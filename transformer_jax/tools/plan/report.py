"""What a compiled program costs on its devices, added up: the numbers that `plan` prints."""

import collections
import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from transformer_jax.runtime.accelerators import Accelerator
from transformer_jax.tools.plan import hlo
from transformer_jax.tools.plan.capacity import GIB, usable
from transformer_jax.tools.plan.costs import Kernel, kernels
from transformer_jax.tools.plan.exchanges import Exchange, exchanges
from transformer_jax.tools.plan.parts import DROPOUT, GROUPS, part_of
from transformer_jax.tools.plan.program import Program

MOST_EXPENSIVE = 10
LAUNCH = 3e-6
"""Seconds to launch a kernel on a GPU, about; not part of the bound, as launches may overlap."""


@dataclasses.dataclass(frozen=True)
class Timed:
    """A kernel with its time.

    Attributes:
      kernel: what it does.
      seconds: of all its runs in a step: what the compiler estimates (TPU), else at least so many.
      limit: what takes the time: "products", "memory", "integers", or "compiler" for its estimate.
    """

    kernel: Kernel
    seconds: float
    limit: str


def timed(kernel: Kernel, accelerator: Accelerator) -> Timed:
    """The time of a kernel: it waits for products, memory or integer units, the slowest."""
    if kernel.is_transfer:
        return Timed(kernel, 0.0, "memory")  # memory as a whole is a bound of its own
    if kernel.cycles is not None:
        return Timed(kernel, kernel.times * kernel.cycles / accelerator.clock, "compiler")
    limits = {
        "products": kernel.flops / accelerator.peak(kernel.dtype),
        "memory": kernel.nbytes / accelerator.bandwidth,
    }
    if accelerator.integer_ops:
        limits["integers"] = kernel.integer_ops / accelerator.integer_ops
    limit = max(limits, key=limits.__getitem__)
    return Timed(kernel, kernel.times * limits[limit], limit)


def costs(program: Program, accelerator: Accelerator, what: str) -> dict[str, Any]:
    """The costs of a program: FLOPs, bytes, times, by group and of the most expensive kernels.

    Args:
      program: compiled for devices of this kind.
      accelerator: what one of them can do.
      what: "train" or "decode".
    """
    spaces = frozenset([0]) if accelerator.platform == "tpu" else frozenset(range(16))
    modules = [hlo.parse(compiled.as_text() or "") for compiled in program.compiled]
    found = [one for module in modules for one in kernels(module, spaces, program.loops)]
    sent = [
        one
        for module in modules
        for one in exchanges(module, program.mesh, accelerator, program.loops)
    ]
    all_timed = [timed(kernel, accelerator) for kernel in found]
    in_kernels = sum(one.seconds for one in all_timed)
    nbytes = sum(kernel.times * kernel.nbytes for kernel in found)
    products = sum(k.times * k.flops / accelerator.peak(k.dtype) for k in found)
    exchanging = sum(one.seconds for one in sent)
    seconds = max(in_kernels, nbytes / accelerator.bandwidth, exchanging)
    size = program.mesh.size
    report: dict[str, Any] = {
        "flops": {
            "model": program.flops,
            "program_per_device": sum(kernel.times * kernel.flops for kernel in found),
        },
        "memory_bytes_per_device": nbytes,
        "interconnect": _by_kind(sent),
        "step_ms": _ms(seconds),
        "kernels_ms": _ms(in_kernels),
        "memory_ms": _ms(nbytes / accelerator.bandwidth),
        "products_ms": _ms(products),
        "interconnect_ms": _ms(exchanging),
        "groups": _by_group(all_timed, what, in_kernels),
        "most_expensive": [
            _row(one, what) for one in sorted(all_timed, key=lambda one: -one.seconds)
        ][:MOST_EXPENSIVE],
        "kernels": sum(kernel.times for kernel in found if not kernel.is_transfer),
        "kernels_of_unknown_cost": sum(kernel.times for kernel in found if kernel.is_opaque),
        "tokens_per_s": round(program.tokens / seconds),
        "mfu": None,
    }
    if accelerator.platform == "gpu":
        report["launches_ms"] = _ms(report["kernels"] * LAUNCH)
    if program.flops:
        least = program.flops / size / accelerator.peak(program.dtype)
        report["mfu"] = round(least / seconds, 4)
        report["at_peak_ms"] = _ms(least)
    return report


def memory(program: Program, accelerator: Accelerator) -> dict[str, Any]:
    """Bytes that a device needs, in GiB, and whether it has them."""
    stats: list[Any] = [compiled.memory_analysis() for compiled in program.compiled]
    temporaries = max(one.temp_size_in_bytes for one in stats)
    peak = max(
        one.argument_size_in_bytes
        + one.temp_size_in_bytes
        + one.output_size_in_bytes
        - one.alias_size_in_bytes
        + one.generated_code_size_in_bytes
        for one in stats
    )
    return room(program.held | {"temporaries": temporaries, "peak": peak}, accelerator)


def room(sizes: dict[str, int], accelerator: Accelerator) -> dict[str, Any]:
    """Sizes in bytes as GiB, with what a device has and what of it is left (negative: missing)."""
    capacity = usable(accelerator)
    known = {f"{name}_gib": round(size / GIB, 6) for name, size in sizes.items()}
    left = capacity - sizes["peak"]
    return known | {
        "device_gib": round(accelerator.memory / GIB, 2),
        "usable_gib": round(capacity / GIB, 2),
        "left_gib": round(left / GIB, 3),
        "fits": left >= 0,
    }


def _by_group(all_timed: Sequence[Timed], what: str, whole: float) -> dict[str, Any]:
    seconds: dict[str, float] = collections.defaultdict(float)
    count: collections.Counter[str] = collections.Counter()
    for one in all_timed:
        group = _group_and_part(one, what)[0]
        seconds[group] += one.seconds
        count[group] += 0 if one.kernel.is_transfer else one.kernel.times
    return {
        group: {
            "ms": _ms(seconds[group]),
            "share": round(seconds[group] / whole, 4) if whole else 0.0,
            "kernels": count[group],
        }
        for group in GROUPS
        if count[group] or seconds[group]
    }


def _group_and_part(one: Timed, what: str) -> tuple[str, str]:
    return DROPOUT if one.limit == "integers" else part_of(one.kernel.op_name, what)


def _row(one: Timed, what: str) -> dict[str, Any]:
    group, part = _group_and_part(one, what)
    return {
        "kernel": one.kernel.name,
        "ms": _ms(one.seconds),
        "limit": one.limit,
        "times": one.kernel.times,
        "group": group,
        "part": part,
        "op_name": one.kernel.op_name,
    }


def _by_kind(sent: Sequence[Exchange]) -> list[dict[str, Any]]:
    """Exchanges of one kind along the same axes together, the longest first."""
    together: dict[tuple[str, str], list[Exchange]] = {}
    for one in sent:
        together.setdefault((one.kind, "+".join(one.axes)), []).append(one)
    rows = [
        {
            "kind": kind,
            "axes": axes,
            "times": sum(one.times for one in of_kind),
            "bytes_per_device": round(sum(one.times * one.nbytes for one in of_kind)),
            "ms": _ms(sum(one.seconds for one in of_kind)),
        }
        for (kind, axes), of_kind in together.items()
    ]
    return sorted(rows, key=lambda row: -row["ms"])


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 4)


def refused(message: str, held: dict[str, int], accelerator: Accelerator) -> dict[str, Any]:
    """The memory of a step that the compiler refused, as far as its message says.

    Args:
      message: the compiler's.
      held: bytes on each device, as `Program.held`.
      accelerator: what one device has.
    """
    used = re.search(r"Used ([\d.]+)([KMGT]) of ([\d.]+)([KMGT])", message)
    if not used:
        return {"fits": False, "reason": " ".join(message.split())[:500]}
    units = {"K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}
    peak, usable = (float(used[i]) * units[used[i + 1]] for i in (1, 3))
    sizes = held | {"temporaries": max(peak - sum(held.values()), 0), "peak": peak}
    return {f"{name}_gib": round(size / GIB, 6) for name, size in sizes.items()} | {
        "device_gib": round(accelerator.memory / GIB, 2),
        "usable_gib": round(usable / GIB, 2),
        "left_gib": round((usable - peak) / GIB, 3),
        "fits": False,
    }
