"""Plans as text: what a person reads beside the JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

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
