"""What a compiled program costs on its devices, added up: the numbers that `plan` prints."""

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.runtime.accelerators import Accelerator
from transformer_jax.tools.plan import hlo
from transformer_jax.tools.plan.collectives import Exchange, exchanges
from transformer_jax.tools.plan.costs import KernelCost, kernels
from transformer_jax.tools.plan.program import Program
from transformer_jax.tools.plan.target import GIB, usable

# FOLDED tools.plan.parts: Which part of the paper a kernel belongs to, by the names of the modules
# that asked for it.


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
"""(regular expression found in the names, group, part of the paper); the first match decides."""

DROPOUT = ("dropout", "5.4 Residual dropout")
_OUTSIDE = {"train": ("optimizer", "5.3 Optimizer"), "decode": ("search", "6.1 Search")}
GROUPS = (
    *("attention", "feed-forward", "norm", "dropout", "embedding", "loss", "optimizer"),
    *("search", "other"),
)


def part_of(op_name: str, what: str) -> tuple[str, str]:
    """The group and the part of a kernel.

    Args:
      op_name: JAX's and Flax's names, as "jit(train_step)/jvp(Model)/decoder/layer_0/...".
      what: "train" or "decode"; what is outside of the model belongs to the optimizer or search.
    """
    if not op_name:
        return "other", "made by the compiler"
    for pattern, group, part in PARTS:
        if re.search(pattern, op_name):
            return group, part
    return _OUTSIDE[what]


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

    kernel: KernelCost
    seconds: float
    limit: str


def timed(kernel: KernelCost, accelerator: Accelerator) -> Timed:
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


# FOLDED tools.plan.table: Plans as text: what a person reads beside the JSON.


_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

ROWS = {
    "mesh": lambda r: " x ".join(f"{axis} {size}" for axis, size in r["mesh"].items()),
    "engine, dtype": lambda r: f"{r['engine']}, {r['dtype']}",
    "accumulation, remat": lambda r: f"{r['accumulation_steps']}, {r['remat']}",
    "parameters": lambda r: f"{r['parameters']:,}",
    "a device: parameters": lambda r: _gib(r, "parameters_gib"),
    "a device: optimizer": lambda r: _gib(r, "optimizer_gib"),
    "a device: temporaries": lambda r: _gib(r, "temporaries_gib"),
    "a device: peak": lambda r: _gib(r, "peak_gib"),
    "a device: usable memory": lambda r: _gib(r, "usable_gib"),
    "fits": lambda r: ("yes" if r["memory"]["fits"] else "NO") + f", {_gib(r, 'left_gib')} left",
    "FLOPs of the model": lambda r: short(r["flops"]["model"]),
    "FLOPs of a device's program": lambda r: short(r["flops"]["program_per_device"]),
    "bytes to memory, a device": lambda r: short(r["memory_bytes_per_device"]),
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
"""A line of the table for each: its title -> its value in a report."""


def as_text(reports: Sequence[Mapping[str, Any]]) -> str:
    """Reports of whole plans, side by side."""
    lines = [["", *(one["device"] for one in reports)]]
    lines += [[title, *(_value(value, one) for one in reports)] for title, value in ROWS.items()]
    lines.append([])
    groups = list(dict.fromkeys(group for one in reports for group in one.get("groups", {})))
    lines += [[f"{name}, ms", *(_group(one, name) for one in reports)] for name in groups]
    text = _aligned(lines)
    for one in reports:
        text += _of_one(one, f" ({one['device']})" if len(reports) > 1 else "")
    return text + f"\n{reports[0]['note']}\n"


def ranking(found: Sequence[Mapping[str, Any]]) -> str:
    """The meshes of a search, the fastest first."""
    lines = [["data", "fsdp", "tensor", "accumulation", "remat", "peak", "ms", "tokens/s", "MFU"]]
    for one in found:
        shown = one["settings"] | {"accumulation": one["accumulation_steps"]}
        fits = one["memory"]["fits"]
        line = [str(shown[name]) for name in lines[0][:5]] + [_gib(one, "peak_gib")]
        if fits:
            line += [f"{one['step_ms']:.2f}", f"{one['tokens_per_s']:,}", f"{one['mfu']:.1%}"]
        lines.append(line if fits else [*line, "does not fit"])
    return _aligned(lines)


def short(number: float | None) -> str:
    """A number with a unit: 1.23T."""
    if number is None:
        return ""
    for size, unit in _UNITS:
        if number >= size:
            return f"{number / size:.2f}{unit}"
    return f"{number:.0f}"


def _of_one(report: Mapping[str, Any], which: str) -> str:
    rows = [
        [
            row["kind"],
            row["axes"],
            str(row["times"]),
            short(row["bytes_per_device"]),
            f"{row['ms']}",
        ]
        for row in report.get("interconnect", [])
    ]
    text = ""
    if rows:
        head = ["exchange", "axes", "times", "bytes sent", "ms"]
        text += f"\nExchanges between devices{which}\n" + _aligned([head, *rows])
    if kernels := report.get("most_expensive"):
        head = ["ms", "limit", "part of the paper", "kernel"]
        body = [[f"{k['ms']:.3f}", k["limit"], k["part"], k["kernel"]] for k in kernels]
        text += f"\nThe most expensive kernels{which}\n" + _aligned([head, *body])
    for warning in report["warnings"]:
        text += f"\nwarning{which}: {warning}\n"
    return text


def _group(report: Mapping[str, Any], name: str) -> str:
    found = report.get("groups", {}).get(name)
    return f"{found['ms']:.2f} ({found['share']:.0%}, {found['kernels']} kernels)" if found else ""


def _gib(report: Mapping[str, Any], name: str) -> str:
    size = report["memory"].get(name)
    return "" if size is None else f"{size:.2f} GiB"


def _value(value: Any, report: Mapping[str, Any]) -> str:
    try:
        return value(report)
    except KeyError:
        return ""  # the compiler found no room: most is not known


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    columns = max(len(line) for line in lines)
    widths = [max([len(line[i]) for line in lines if i < len(line)] or [0]) for i in range(columns)]
    text = ""
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        text += "  ".join(cells).rstrip() + "\n"
    return text
