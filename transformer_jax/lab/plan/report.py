# SPDX-License-Identifier: Apache-2.0
"""Report of a plan: memory, times, FLOPs and bytes of a compiled program; and its text form."""

import contextlib
import itertools
import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from transformer_jax.lab.plan.costs import Collective, KernelCost, collectives, kernel_costs
from transformer_jax.lab.plan.hlo import parse_module
from transformer_jax.lab.plan.program import Program, memory_of
from transformer_jax.lab.plan.target import GIB, usable_bytes
from transformer_jax.runtime.accelerators import Accelerator

LAUNCH_SECONDS = 3e-6
"""Approximate time to launch a kernel on a GPU; not in the bound, since launches may overlap."""

_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

TABLE_ROWS = {
    "mesh": lambda r: (
        " x ".join(f"{axis} {n}" for axis, n in r["mesh"].items() if n > 1) or "one device"
    ),
    "engine, dtype": lambda r: f"{r['engine']}, {r['dtype']}",
    "accumulation, remat": lambda r: f"{r['accumulation_steps']}, {r['remat']}",
    "parameters": lambda r: f"{r['parameters']:,}",
    "of which a token uses": lambda r: (
        f"{r['active_parameters']:,}" if r["active_parameters"] < r["parameters"] else ""
    ),
    "a device: parameters": lambda r: _gib(r, "parameters_gib"),
    "a device: optimizer": lambda r: _gib(r, "optimizer_gib"),
    "a device: temporaries": lambda r: _gib(r, "temporaries_gib"),
    "a device: peak": lambda r: _gib(r, "peak_gib"),
    "a device: usable memory": lambda r: _gib(r, "usable_gib"),
    "fits": lambda r: ("yes" if r["memory"]["fits"] else "NO") + f", {_gib(r, 'left_gib')} left",
    "cache of one sequence": lambda r: _cache(r["cache"]),
    "FLOPs of the model": lambda r: with_unit(r["flops"]["model"]),
    "FLOPs of a device's program": lambda r: with_unit(r["flops"]["program_per_device"]),
    "bytes to memory, a device": lambda r: with_unit(r["memory_bytes_per_device"]),
    "kernels": lambda r: f"{r['kernels']:,}",
    "ms at least": lambda r: f"{r['step_ms']:.2f}",
    "  all kernels": lambda r: f"{r['kernels_ms']:.2f}",
    "  products at peak": lambda r: f"{r['products_ms']:.2f}",
    "  bytes at full bandwidth": lambda r: f"{r['memory_ms']:.2f}",
    "  exchanges": lambda r: f"{r['interconnect_ms']:.2f}",
    "  launches, 3 us each, not counted": lambda r: f"{r['launches_ms']:.2f}",
    "MFU at most": lambda r: "" if r["mfu"] is None else f"{r['mfu']:.1%}",
    "tokens/s at most": lambda r: f"{r['tokens_per_s']:,}",
    "tokens/s packed here, one process": lambda r: (
        f"{r['packing']['tokens_per_s']:,}"
        if "tokens_per_s" in r["packing"]
        else f"not measured: {r['packing']['reason']}"
    ),
    "compilation, s": lambda r: f"{r['compile_s']:.0f}",
}
"""Rows of the table: title -> function from a report to the cell."""


def cost_report(program: Program, accelerator: Accelerator) -> dict[str, Any]:
    """FLOPs, bytes and times of a program compiled for devices of this kind, and of its kernels."""
    # The other memory spaces of a TPU are on its chip; a GPU's are numbered by the compiler.
    spaces = frozenset([0]) if accelerator.platform == "tpu" else frozenset(range(16))
    kernels: list[KernelCost] = []
    exchanges: list[Collective] = []
    for compiled in program.compiled:
        entry = parse_module(compiled.as_text() or "")
        kernels += kernel_costs(entry, spaces, program.loops)
        exchanges += collectives(entry, program.mesh, accelerator, program.loops)
    groups = [_kernel_row(kernel, accelerator) for kernel in kernels]
    nbytes = sum(row["bytes"] for row in groups)
    launched = sum(kernel.times for kernel in kernels if not kernel.is_transfer)
    times = {
        "kernels_ms": sum(row["ms"] for row in groups),
        "memory_ms": 1e3 * nbytes / accelerator.bandwidth,
        "interconnect_ms": sum((exchange.ms for exchange in exchanges), 0.0),
    }
    # A bound: kernels, memory and links all work at the same time.
    step_ms = max(times.values())
    times["step_ms"] = step_ms
    times["products_ms"] = 1e3 * sum(k.times * k.flops / accelerator.peak(k.dtype) for k in kernels)
    if accelerator.platform == "gpu":
        times["launches_ms"] = 1e3 * launched * LAUNCH_SECONDS
    if program.flops:
        peak = accelerator.peak(program.facts["dtype"])
        times["at_peak_ms"] = 1e3 * program.flops / program.mesh.size / peak
    return {
        "flops": {
            "model": program.flops,
            "program_per_device": sum(row["flops"] for row in groups),
        },
        "memory_bytes_per_device": nbytes,
        "interconnect": _sums([exchange._asdict() for exchange in exchanges], ["kind", "axes"]),
        **{name: round(milliseconds, 4) for name, milliseconds in times.items()},
        # Kernels of one shape and one place in the model.
        "kernel_groups": _sums(groups, ["place", "shape", "limit"]),
        "kernels": launched,
        "kernels_of_unknown_cost": sum(kernel.times for kernel in kernels if kernel.is_opaque),
        "tokens_per_s": round(1e3 * program.tokens / step_ms),
        "mfu": round(times["at_peak_ms"] / step_ms, 4) if program.flops else None,
    }


def _kernel_row(kernel: KernelCost, accelerator: Accelerator) -> dict[str, Any]:
    """All runs of a kernel in a step.

    Its place is JAX's and Flax's names, as "jit(train_step)/jvp(Model)/decoder/layer_N/..."; layers
    that are alike count as one. Its limit is "compiler" if that estimates the time (TPUs), or else
    the slowest of "products", "memory" and "integers", a lower bound.
    """
    limits = {
        "products": kernel.flops / accelerator.peak(kernel.dtype),
        "memory": kernel.nbytes / accelerator.bandwidth,
    }
    if accelerator.integer_ops:
        limits["integers"] = kernel.integer_ops / accelerator.integer_ops
    if kernel.is_transfer:
        limits = {"memory": 0.0}  # the traffic of all kernels has its own bound
    elif kernel.cycles is not None:
        limits = {"compiler": kernel.cycles / accelerator.clock}
    limit = max(limits, key=limits.__getitem__)
    scopes = re.sub(r"layer_\d+", "layer_N", kernel.instruction.op_name)
    return {
        "place": scopes or "made by the compiler",
        "shape": ", ".join(map(str, kernel.instruction.arrays)),
        "limit": limit,
        "times": kernel.times,
        "flops": kernel.times * kernel.flops,
        "bytes": kernel.times * kernel.nbytes,
        "ms": 1e3 * kernel.times * limits[limit],
    }


def _sums(rows: Sequence[dict[str, Any]], keys: list[str]) -> list[dict[Hashable, Any]]:
    """Sums of rows that have equal keys, the longest first."""
    if not rows:
        return []
    from pandas import DataFrame  # a second, and only plans need it

    sums = DataFrame(rows).groupby(keys, as_index=False, sort=False).sum()
    return sums.sort_values("ms", ascending=False, kind="stable").round(6).to_dict("records")


def memory_report(program: Program, accelerator: Accelerator) -> dict[str, Any]:
    """GiB that a device needs, has, and has left (negative: missing), and whether the program fits;
    of one that the compiler refused, as far as its message says."""
    if program.refusal:
        used = re.search(r"Used ([\d.]+)([KMGT]) of ([\d.]+)([KMGT])", program.refusal)
        if not used:
            return {"fits": False, "reason": " ".join(program.refusal.split())[:500]}
        units = {"K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}
        peak = float(used[1]) * units[used[2]]
        usable = float(used[3]) * units[used[4]]
        temporaries = max(peak - sum(program.held.values()), 0)
    else:
        needed = [memory_of(compiled) for compiled in program.compiled]
        temporaries = max(size for size, _ in needed)
        peak = max(size for _, size in needed)
        usable = usable_bytes(accelerator)
    sizes = program.held | {"temporaries": temporaries, "peak": peak}
    return {f"{name}_gib": round(size / GIB, 6) for name, size in sizes.items()} | {
        "device_gib": round(accelerator.memory / GIB, 2),
        "usable_gib": round(usable / GIB, 2),
        "left_gib": round((usable - peak) / GIB, 3),
        "fits": not program.refusal and usable >= peak,
    }


def plan_as_text(report: Mapping[str, Any], num_kernels: int = 0) -> str:
    """A plan as tables: its figures, the exchanges, and the first groups of kernels."""
    figures = [["", report["device"]]]
    for title, cell in TABLE_ROWS.items():
        with contextlib.suppress(KeyError):  # a program that does not fit has few numbers
            figures.append([title, cell(report)])
    text = _aligned([line for line in figures if line[1]])

    exchanges = [["exchange", "axes", "times", "bytes sent", "ms"]]
    for row in report.get("interconnect", []):
        size = with_unit(row["bytes_per_device"])
        exchanges.append([row["kind"], row["axes"], str(row["times"]), size, f"{row['ms']:.4f}"])
    if len(exchanges) > 1:
        text += "\nExchanges between devices\n" + _aligned(exchanges)

    kernels = [["ms", "limit", "times", "FLOPs", "bytes", "shape", "place"]]
    for row in report.get("kernel_groups", [])[:num_kernels]:
        sizes = [with_unit(row["flops"]), with_unit(row["bytes"]), row["shape"]]
        kernels.append([f"{row['ms']:.3f}", row["limit"], str(row["times"]), *sizes, row["place"]])
    if len(kernels) > 1:
        text += "\nKernels\n" + _aligned(kernels)
    for warning in report["warnings"]:
        text += f"\nwarning: {warning}\n"
    return text + f"\n{report['note']}\n"


def ranking_as_text(reports: Sequence[Mapping[str, Any]]) -> str:
    """The meshes of a search as a table, in their order."""
    lines = [["data", "fsdp", "tensor", "accumulation", "remat", "peak", "ms", "tokens/s", "MFU"]]
    for report in reports:
        settings = report["settings"] | {"accumulation": report["accumulation_steps"]}
        times = ["does not fit"]
        if report["memory"]["fits"]:
            times = [f"{report['step_ms']:.2f}", f"{report['tokens_per_s']:,}"]
            times.append(f"{report['mfu']:.1%}")
        chosen = [str(settings[name]) for name in lines[0][:5]]
        lines.append([*chosen, _gib(report, "peak_gib"), *times])
    return _aligned(lines)


def _gib(report: Mapping[str, Any], name: str) -> str:
    size = report["memory"].get(name)
    return "" if size is None else _memory(size * GIB)


def _memory(nbytes: float) -> str:
    if abs(nbytes) < 0.1 * GIB:
        return f"{nbytes / 2**20:.2f} MiB"
    return f"{nbytes / GIB:.2f} GiB"


def _cache(cache: Mapping[str, int] | None) -> str:
    """Size of a decoding state, and what a token adds to it on average."""
    if cache is None:
        return ""
    tokens = cache["tokens"]
    nbytes = cache["bytes"]
    return f"{_memory(nbytes)}, {tokens:,} tokens of {nbytes / tokens:,.0f} bytes"


def with_unit(number: float | None) -> str:
    """A number with a unit: 1.23T."""
    if number is None:
        return ""
    for size, unit in _UNITS:
        if number >= size:
            return f"{number / size:.2f}{unit}"
    return f"{number:.0f}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as columns of equal width."""
    widths = [max(map(len, column)) for column in itertools.zip_longest(*lines, fillvalue="")]
    padded = ("  ".join(map(str.ljust, line, widths)) for line in lines)
    return "".join(f"{line.rstrip()}\n" for line in padded)
