# SPDX-License-Identifier: Apache-2.0
"""Pictures of a sweep, with a panel for each metric: its rows, their curves, their differences."""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from transformer_jax.pictures.curves import UNITS, Records, series
from transformer_jax.pictures.style import (
    COLORS,
    LINES,
    MARKERS,
    Picture,
    add_legend,
    deviation,
    draw_band,
    drawable,
    grid,
    styled,
)
from transformer_jax.scoring.statistics import SeedTest

Metrics = Mapping[str, Sequence[float | None]]
"""Metric -> the value of each seed; NaN if it diverged, None if it has no such metric."""

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
_FEWEST = 3
"""Numbers that make a curve."""
_MOST_TICKS = 7
_MARKER_GAP = 8
"""Points from one marker to the next, where a curve has many."""
MARK = "\N{NOT EQUAL TO}"
"""Marks a value that differs from the first row's."""


@styled
def draw_sweep(rows: Mapping[str, Metrics], different: Collection[tuple[str, str]] = ()) -> Picture:
    """Means and standard deviations over seeds, a panel for each metric.

    Rows whose names differ in a number ("learning_rate=1e-3") are a curve with a band, on a
    logarithmic axis if the numbers are rather multiplied than added. Other rows are one line each:
    dots for seeds, a bar for mean and deviation.

    Args:
      rows: name of a row -> its metrics.
      different: (row, metric) of values that differ from the first row's; they are marked.
    """
    names = list(dict.fromkeys(name for metrics in rows.values() for name in metrics))
    names = [name for name in names if any(finite(each.get(name, ())) for each in rows.values())]
    curves, xlabel = _numeric(list(rows))
    figure, axes = grid(max(len(names), 1), 2.2 if curves else 0.7 + 0.22 * len(rows))
    for ax, name in zip(axes, names, strict=False):
        values = {row: metrics.get(name, ()) for row, metrics in rows.items()}
        shown = drawable(UNITS.get(name, name))
        marked = {row for row, metric in different if metric == name}
        if curves:
            _draw_curves(ax, curves, values, marked)
            ax.set(xlabel=drawable(xlabel), ylabel=shown)
        else:
            _draw_lines(ax, values, marked)
            ax.set(xlabel=shown)
    add_legend(figure, [_line(i, label=drawable(label)) for i, label in enumerate(curves)])
    return figure


@styled
def draw_sweep_curves(rows: Mapping[str, Sequence[Records]], metrics: Sequence[str]) -> Picture:
    """Validation metrics over the steps: means over seeds, with bands of one standard deviation.

    Args:
      rows: name of a row -> the records of each seed.
      metrics: names; those that no row has recorded have no panel.
    """
    curves = {
        metric: {name: series(seeds, "valid", metric) for name, seeds in rows.items()}
        for metric in metrics
    }
    curves = {metric: each for metric, each in curves.items() if any(each.values())}
    figure, axes = grid(max(len(curves), 1), 2.6)
    for ax, (metric, each) in zip(axes, curves.items(), strict=False):
        for number, values in enumerate(each.values()):
            places = (number % _MARKER_GAP, _MARKER_GAP) if len(values) > 2 * _MARKER_GAP else 1
            draw_band(ax, values, **_style(number), markevery=places)
        ax.set(xlabel="step", ylabel=f"validation {drawable(UNITS.get(metric, metric))}")
    add_legend(figure, [_line(i, label=drawable(name)) for i, name in enumerate(rows)])
    return figure


@styled
def draw_differences(tests: Sequence[SeedTest], base: str) -> Picture:
    """Differences from the first row with their 95% intervals, a panel for each metric.

    Filled dots are differences by the corrected test. Beside others is the number of seeds that
    would decide.

    Args:
      tests: as `compare_seeds` makes them.
      base: name of the first row.
    """
    metrics = list(dict.fromkeys(test.metric for test in tests))
    rows = list(dict.fromkeys(test.name for test in tests))
    figure, axes = grid(max(len(metrics), 1), 0.7 + 0.22 * len(rows))
    for ax, metric in zip(axes, metrics, strict=False):
        labels: list[str] = []
        for test in (one for one in tests if one.metric == metric):
            found, height = test.difference, len(labels)
            ax.plot([found.low, found.high], [height] * 2, color=COLORS[0], marker="|", ms=5)
            face = COLORS[0] if test.differs else "white"
            ax.plot([found.mean], [height], "o", color=COLORS[0], mfc=face)
            needed = f" ({test.seeds_to_decide} seeds)" if test.seeds_to_decide else ""
            labels.append(drawable(test.name) + (f" {MARK}" if test.differs else needed))
        ax.axvline(0, color="0.4", lw=0.8, ls="--")
        ax.set(yticks=range(len(labels)), yticklabels=labels)
        ax.set_ylim(len(labels) - 0.5, -0.5)
        ax.set(xlabel=f"{drawable(UNITS.get(metric, metric))}, difference from {drawable(base)}")
        ax.grid(False, axis="y")
    return figure


def finite(values: Sequence[float | None]) -> list[float]:
    """The values that are finite numbers."""
    return [value for value in values if value is not None and math.isfinite(value)]


def is_geometric(numbers: Sequence[float]) -> bool:
    """Returns True if positive numbers, in order, have more equal ratios than differences."""
    if min(numbers) <= 0 or len(numbers) < _FEWEST:
        return False
    gaps = [np.diff(values) for values in (np.log(numbers), np.array(numbers, float))]
    by_ratio, by_difference = (np.std(gap) / np.mean(gap) for gap in gaps)
    return bool(by_ratio < by_difference)


def _numeric(names: Sequence[str]) -> tuple[dict[str, dict[float, str]], str]:
    """Label of each curve -> {number: row}, and the label of the axis. Empty if the rows are not
    numbers: each is the same text with another number, and each text has at least three."""
    curves = defaultdict[tuple[str, str], dict[float, str]](dict)
    for name in names:
        numbers = list(_NUMBER.finditer(name))
        if not numbers:
            return {}, ""
        text = (name[: numbers[-1].start()], name[numbers[-1].end() :])
        if curves[text].setdefault(float(numbers[-1][0]), name) != name:
            return {}, ""
    if min(map(len, curves.values()), default=0) < _FEWEST:
        return {}, ""
    ends = {after for _, after in curves}
    shared = ends.pop() if len(ends) == 1 else ""
    labels = [f"{before}{'' if shared else after}".strip(" =:_,") for before, after in curves]
    if len(curves) == 1:
        shared = f"{labels[0]} {shared}"
    sorted_rows = [dict(sorted(rows.items())) for rows in curves.values()]
    found = dict(zip(labels, sorted_rows, strict=True))
    return found, shared.strip(" =:_,") or "number in the name of the row"


def _line(number: int, label: str) -> Line2D:
    return Line2D([], [], **_style(number), label=label)


def _style(number: int) -> dict[str, Any]:
    """Color, marker and line of a curve; 49 curves have different ones."""
    shifted = number + number // len(COLORS)
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[shifted % len(MARKERS)],
        "ls": LINES[shifted % len(LINES)],
    }


def _draw_curves(
    ax: Axes,
    curves: Mapping[str, Mapping[float, str]],
    values: Mapping[str, Sequence[float | None]],
    marked: Collection[str],
) -> None:
    at = defaultdict[float, list[float | None]](list)
    for number, rows in enumerate(curves.values()):
        held = {x: finite(values[row]) for x, row in rows.items() if finite(values[row])}
        draw_band(ax, held, **_style(number))
        for x, row in rows.items():
            at[x] += values[row]
    for x, seeds in at.items():
        above: dict[str, Any] = {
            "xycoords": ("data", "axes fraction"),
            "ha": "center",
            "va": "bottom",
        }
        mark = MARK if any(rows.get(x) in marked for rows in curves.values()) else ""
        ax.annotate(f"{mark} {_diverged(seeds)}".strip(), (x, 1), **above, fontsize=6)
    numbers = sorted(at)
    if is_geometric(numbers):
        ax.set_xscale("log")
        if len(numbers) <= _MOST_TICKS:
            ax.set_xticks(numbers, [f"{x:g}" for x in numbers])
            ax.minorticks_off()


def _draw_lines(
    ax: Axes, values: Mapping[str, Sequence[float | None]], marked: Collection[str]
) -> None:
    labels = []
    for height, (row, seeds) in enumerate(values.items()):
        held = finite(seeds)
        ax.plot(held, [height] * len(held), "o", color=COLORS[0], alpha=0.4, mew=0)
        if held:
            bar: dict[str, Any] = {
                "fmt": "|",
                "color": COLORS[1],
                "capsize": 2.5,
                "ms": 8,
                "elinewidth": 1,
            }
            ax.errorbar(np.mean(held), height, xerr=deviation(held), **bar)
        note = _diverged(seeds)
        mark = f" {MARK}" if row in marked else ""
        labels.append(drawable(row) + mark + (f" ({note})" if note else ""))
    ax.set(yticks=range(len(values)), yticklabels=labels)
    ax.set_ylim(len(values) - 0.5, -0.5)
    ax.grid(False, axis="y")


def _diverged(values: Sequence[float | None]) -> str:
    lost = sum(value is not None and not math.isfinite(value) for value in values)
    return f"{lost} of {len(values)} diverged" if lost else ""
