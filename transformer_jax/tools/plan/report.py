# SPDX-License-Identifier: Apache-2.0
"""Report of a plan: memory, times, FLOPs and bytes of a compiled program; and its text form."""

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.runtime.accelerators import Accelerator
from transformer_jax.tools.plan.collectives import Collective, collectives
from transformer_jax.tools.plan.costs import KernelCost, kernel_costs
from transformer_jax.tools.plan.hlo import parse_module
from transformer_jax.tools.plan.program import Program, memory_of
from transformer_jax.tools.plan.target import GIB, usable_bytes

PARTS = [
    (r"dropout", "dropout", "5.4 Residual dropout"),
    (r"logits|prediction_head|classifier", "loss", "3.4 Pre-softmax linear layer"),
    (r"embed\b|embedding|positions|token_types", "embedding", "3.4, 3.5 Embeddings and positions"),
    (r"_residual\b|norm", "norm", "3.1 Residual connections and normalization"),
    (r"feed_forward", "feed-forward", "3.3 Position-wise feed-forward networks"),
    (
        r"attention.*/(query|key|value|output)\b",
        "attention",
        "3.2.2 Multi-head attention: projections",
    ),
    (r"attention|attend|remember|mask", "attention", "3.2.1 Scaled dot-product attention"),
    (r"coder/while/body/(jit\(dynamic_\w+\)/)?dynamic_", "other", "kept by scanned layers"),
    (r"decode_step|prefill", "search", "6.1 Search"),
    (r"jvp\(", "loss", "5.4 Label smoothing: the loss"),
]
"""(regular expression, group, part of the paper); the first that matches the names decides."""

GROUPS = (
    *("attention", "feed-forward", "norm", "dropout", "embedding", "loss", "optimizer"),
    *("search", "other"),
)
NUM_EXPENSIVE_KERNELS = 10
LAUNCH_SECONDS = 3e-6
"""Approximate time to launch a kernel on a GPU; not in the bound, since launches may overlap."""

_DROPOUT = ("dropout", "5.4 Residual dropout")
_OUTSIDE_MODEL = {"train": ("optimizer", "5.3 Optimizer"), "decode": ("search", "6.1 Search")}
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

TABLE_ROWS = {
    "mesh": lambda r: _named_axes(r["mesh"]),
    "engine, dtype": lambda r: f"{r['engine']}, {r['dtype']}",
    "accumulation, remat": lambda r: f"{r['accumulation_steps']}, {r['remat']}",
    "parameters": lambda r: f"{r['parameters']:,}",
    "of which a token uses": lambda r: _if_fewer(r["active_parameters"], r["parameters"]),
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
    "compilation, s": lambda r: f"{r['compile_s']:.0f}",
}
"""Rows of the table: title -> function from a report to the cell."""


@dataclasses.dataclass(frozen=True)
class TimedKernel:
    """A kernel and its time.

    Attributes:
      kernel: its cost.
      seconds: of all runs in a step: the compiler's estimate (TPUs), otherwise a lower bound.
      limit: what takes the time: "products", "memory", "integers"; "compiler" for its estimate.
    """

    kernel: KernelCost
    seconds: float
    limit: str


def time_kernel(kernel: KernelCost, accelerator: Accelerator) -> TimedKernel:
    """Times a kernel: the slowest of its products, memory traffic and integer operations."""
    if kernel.is_transfer:
        return TimedKernel(kernel, 0.0, "memory")  # the traffic of all kernels has its own bound
    if kernel.cycles is not None:
        return TimedKernel(kernel, kernel.times * kernel.cycles / accelerator.clock, "compiler")
    limits = {
        "products": kernel.flops / accelerator.peak(kernel.dtype),
        "memory": kernel.nbytes / accelerator.bandwidth,
    }
    if accelerator.integer_ops:
        limits["integers"] = kernel.integer_ops / accelerator.integer_ops
    limit = max(limits, key=limits.__getitem__)
    return TimedKernel(kernel, kernel.times * limits[limit], limit)


def cost_report(program: Program, accelerator: Accelerator, what: str) -> dict[str, Any]:
    """Costs of a program: FLOPs, bytes and times, by group and of the most expensive kernels.

    Args:
      program: compiled for devices of this kind.
      accelerator: specification of one device.
      what: "train" or "decode".
    """
    spaces = frozenset([0]) if accelerator.platform == "tpu" else frozenset(range(16))
    modules = [parse_module(compiled.as_text() or "") for compiled in program.compiled]
    kernels = [k for module in modules for k in kernel_costs(module, spaces, program.loops)]
    sent = [
        collective
        for module in modules
        for collective in collectives(module, program.mesh, accelerator, program.loops)
    ]
    timed = [time_kernel(kernel, accelerator) for kernel in kernels]
    kernel_seconds = sum(kernel.seconds for kernel in timed)
    nbytes = sum(kernel.times * kernel.nbytes for kernel in kernels)
    product_seconds = sum(k.times * k.flops / accelerator.peak(k.dtype) for k in kernels)
    collective_seconds = sum(collective.seconds for collective in sent)
    seconds = max(kernel_seconds, nbytes / accelerator.bandwidth, collective_seconds)
    report: dict[str, Any] = {
        "flops": {
            "model": program.flops,
            "program_per_device": sum(kernel.times * kernel.flops for kernel in kernels),
        },
        "memory_bytes_per_device": nbytes,
        "interconnect": _by_kind(sent),
        "step_ms": _ms(seconds),
        "kernels_ms": _ms(kernel_seconds),
        "memory_ms": _ms(nbytes / accelerator.bandwidth),
        "products_ms": _ms(product_seconds),
        "interconnect_ms": _ms(collective_seconds),
        "groups": _by_group(timed, what, kernel_seconds),
        "most_expensive": [
            _as_row(kernel, what) for kernel in sorted(timed, key=lambda kernel: -kernel.seconds)
        ][:NUM_EXPENSIVE_KERNELS],
        "kernels": sum(kernel.times for kernel in kernels if not kernel.is_transfer),
        "kernels_of_unknown_cost": sum(kernel.times for kernel in kernels if kernel.is_opaque),
        "tokens_per_s": round(program.tokens / seconds),
        "mfu": None,
    }
    if accelerator.platform == "gpu":
        report["launches_ms"] = _ms(report["kernels"] * LAUNCH_SECONDS)
    if program.flops:
        peak_seconds = program.flops / program.mesh.size / accelerator.peak(program.dtype)
        report["mfu"] = round(peak_seconds / seconds, 4)
        report["at_peak_ms"] = _ms(peak_seconds)
    return report


def memory_report(program: Program, accelerator: Accelerator) -> dict[str, Any]:
    """GiB that a device needs and has, and whether the program fits."""
    needed = [memory_of(compiled) for compiled in program.compiled]
    temporaries = max(size for size, _ in needed)
    peak = max(size for _, size in needed)
    sizes = program.held | {"temporaries": temporaries, "peak": peak}
    return _in_gib(sizes, accelerator, usable_bytes(accelerator))


def refused_memory_report(
    message: str, held: dict[str, int], accelerator: Accelerator
) -> dict[str, Any]:
    """Memory of a step that the compiler refused, as far as its message says.

    Args:
      message: the compiler's.
      held: bytes on each device, as `Program.held`.
      accelerator: specification of one device.
    """
    used = re.search(r"Used ([\d.]+)([KMGT]) of ([\d.]+)([KMGT])", message)
    if not used:
        return {"fits": False, "reason": " ".join(message.split())[:500]}
    units = {"K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}
    peak, usable = (float(used[i]) * units[used[i + 1]] for i in (1, 3))
    sizes = held | {"temporaries": max(peak - sum(held.values()), 0), "peak": peak}
    return _in_gib(sizes, accelerator, usable) | {"fits": False}


def _in_gib(sizes: Mapping[str, float], accelerator: Accelerator, usable: float) -> dict[str, Any]:
    """Bytes as GiB, beside the memory of a device and what is left of it (negative: missing)."""
    left = usable - sizes["peak"]
    return {f"{name}_gib": round(size / GIB, 6) for name, size in sizes.items()} | {
        "device_gib": round(accelerator.memory / GIB, 2),
        "usable_gib": round(usable / GIB, 2),
        "left_gib": round(left / GIB, 3),
        "fits": left >= 0,
    }


def group_and_part(op_name: str, what: str) -> tuple[str, str]:
    """The group of a kernel and its part of the paper.

    Args:
      op_name: JAX's and Flax's names, as "jit(train_step)/jvp(Model)/decoder/layer_0/...".
      what: "train" or "decode"; kernels outside the model belong to the optimizer or the search.
    """
    if not op_name:
        return "other", "made by the compiler"
    for pattern, group, part in PARTS:
        if re.search(pattern, op_name):
            return group, part
    return _OUTSIDE_MODEL[what]


def _group_and_part(timed: TimedKernel, what: str) -> tuple[str, str]:
    """The group and part of a kernel; one limited by integer operations makes random bits."""
    return _DROPOUT if timed.limit == "integers" else group_and_part(timed.kernel.op_name, what)


def _by_group(timed: Sequence[TimedKernel], what: str, whole: float) -> dict[str, Any]:
    seconds: dict[str, float] = collections.defaultdict(float)
    count: collections.Counter[str] = collections.Counter()
    for kernel in timed:
        group, _ = _group_and_part(kernel, what)
        seconds[group] += kernel.seconds
        count[group] += 0 if kernel.kernel.is_transfer else kernel.kernel.times
    return {
        group: {
            "ms": _ms(seconds[group]),
            "share": round(seconds[group] / whole, 4) if whole else 0.0,
            "kernels": count[group],
        }
        for group in GROUPS
        if count[group] or seconds[group]
    }


def _as_row(timed: TimedKernel, what: str) -> dict[str, Any]:
    group, part = _group_and_part(timed, what)
    return {
        "kernel": timed.kernel.name,
        "ms": _ms(timed.seconds),
        "limit": timed.limit,
        "times": timed.kernel.times,
        "group": group,
        "part": part,
        "op_name": timed.kernel.op_name,
    }


def _by_kind(sent: Sequence[Collective]) -> list[dict[str, Any]]:
    """Sums of collectives by kind and axes, the longest first."""
    by_kind: dict[tuple[str, str], list[Collective]] = {}
    for collective in sent:
        by_kind.setdefault((collective.kind, "+".join(collective.axes)), []).append(collective)
    rows = [
        {
            "kind": kind,
            "axes": axes,
            "times": sum(one.times for one in of_kind),
            "bytes_per_device": round(sum(one.times * one.nbytes for one in of_kind)),
            "ms": _ms(sum(one.seconds for one in of_kind)),
        }
        for (kind, axes), of_kind in by_kind.items()
    ]
    return sorted(rows, key=lambda row: -row["ms"])


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 4)


def plans_as_text(reports: Sequence[Mapping[str, Any]]) -> str:
    """Reports of plans as a table, side by side."""
    lines = [["", *(report["device"] for report in reports)]]
    for title, cell in TABLE_ROWS.items():
        lines.append([title, *(_cell(cell, report) for report in reports)])
    lines.append([])
    groups = dict.fromkeys(group for report in reports for group in report.get("groups", {}))
    lines += [
        [f"{name}, ms", *(_group_cell(report, name) for report in reports)] for name in groups
    ]
    text = _aligned(lines)
    for report in reports:
        text += _details(report, f" ({report['device']})" if len(reports) > 1 else "")
    return text + f"\n{reports[0]['note']}\n"


def ranking_as_text(found: Sequence[Mapping[str, Any]]) -> str:
    """The meshes of a search as a table, in their order."""
    lines = [["data", "fsdp", "tensor", "accumulation", "remat", "peak", "ms", "tokens/s", "MFU"]]
    for report in found:
        settings = report["settings"] | {"accumulation": report["accumulation_steps"]}
        line = [str(settings[name]) for name in lines[0][:5]] + [_gib(report, "peak_gib")]
        if report["memory"]["fits"]:
            line += [f"{report['step_ms']:.2f}", f"{report['tokens_per_s']:,}"]
            line += [f"{report['mfu']:.1%}"]
        else:
            line += ["does not fit"]
        lines.append(line)
    return _aligned(lines)


def _details(report: Mapping[str, Any], suffix: str) -> str:
    """Tables of collectives and of the most expensive kernels, and warnings."""
    rows = [
        [
            row["kind"],
            row["axes"],
            str(row["times"]),
            with_unit(row["bytes_per_device"]),
            f"{row['ms']}",
        ]
        for row in report.get("interconnect", [])
    ]
    text = ""
    if rows:
        head = ["exchange", "axes", "times", "bytes sent", "ms"]
        text += f"\nExchanges between devices{suffix}\n" + _aligned([head, *rows])
    if kernels := report.get("most_expensive"):
        head = ["ms", "limit", "part of the paper", "kernel"]
        body = [[f"{k['ms']:.3f}", k["limit"], k["part"], k["kernel"]] for k in kernels]
        text += f"\nThe most expensive kernels{suffix}\n" + _aligned([head, *body])
    for warning in report["warnings"]:
        text += f"\nwarning{suffix}: {warning}\n"
    return text


def _cell(cell: Any, report: Mapping[str, Any]) -> str:
    try:
        return cell(report)
    except KeyError:
        return ""  # a program that does not fit has few numbers


def _group_cell(report: Mapping[str, Any], name: str) -> str:
    group = report.get("groups", {}).get(name)
    return f"{group['ms']:.2f} ({group['share']:.0%}, {group['kernels']} kernels)" if group else ""


def _gib(report: Mapping[str, Any], name: str) -> str:
    size = report["memory"].get(name)
    return "" if size is None else f"{size:.2f} GiB"


def _cache(cache: Mapping[str, int] | None) -> str:
    """Size of a decoding state, and what a token adds to it on average."""
    if cache is None:
        return ""
    tokens, nbytes = cache["tokens"], cache["bytes"]
    return f"{nbytes / 2**20:.1f} MiB, {tokens:,} tokens of {nbytes / tokens:,.0f} bytes"


def _if_fewer(active: int, total: int) -> str:
    return f"{active:,}" if active < total else ""


def with_unit(number: float | None) -> str:
    """A number with a unit: 1.23T."""
    if number is None:
        return ""
    for size, unit in _UNITS:
        if number >= size:
            return f"{number / size:.2f}{unit}"
    return f"{number:.0f}"


def _named_axes(mesh: Mapping[str, int]) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in mesh.items() if size > 1) or "one device"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as columns of equal width."""
    columns = max(len(line) for line in lines)
    widths = [max([len(line[i]) for line in lines if i < len(line)] or [0]) for i in range(columns)]
    text = ""
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        text += "  ".join(cells).rstrip() + "\n"
    return text
