# SPDX-License-Identifier: Apache-2.0
"""Pictures of a sweep, with a panel for each metric: its rows, their curves, their differences."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from transformer_jax.lab.pictures import style
from transformer_jax.lab.pictures.curves import UNITS, Records, series
from transformer_jax.scoring.statistics import SeedTest, deviation, diverged, finite

Metrics = Mapping[str, Sequence[float | None]]
"""Metric -> the value of each seed; NaN if it diverged, None if it has no such metric."""

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
_FEWEST = 3
"""Numbers that make a curve."""
_MOST_TICKS = 7
_BLUE = style.COLORS[0]
_ORANGE = style.COLORS[1]
_SEED = Line2D([], [], color=_BLUE, ls="", marker="o", alpha=0.4, mew=0, label="one seed")
_MEAN = Line2D([], [], color=_ORANGE, marker="|", ms=8, label="mean and one deviation")
_INTERVAL = Line2D([], [], color=_BLUE, marker="|", ms=5, label="95% interval")
_DIFFERS = Line2D([], [], color=_BLUE, ls="", marker="o", label=f"{style.MARK} differs")
_MARKER_GAP = 8
"""Points from one marker to the next, where a curve has many."""


@style.styled
def draw_sweep(
    rows: Mapping[str, Metrics], different: Collection[tuple[str, str]] = ()
) -> style.Picture:
    """Means and standard deviations over seeds, a panel for each metric.

    Rows whose names differ in a number ("learning_rate=1e-3") are a curve with a band, on a
    logarithmic axis if the numbers are rather multiplied than added. Other rows are one line each:
    dots for seeds, a bar for mean and deviation.

    Args:
      rows: name of a row -> its metrics.
      different: (row, metric) of values that differ from the first row's; they are marked.
    """
    names = list(dict.fromkeys(name for metrics in rows.values() for name in metrics))
    names = [
        name for name in names if any(finite(metrics.get(name, ())) for metrics in rows.values())
    ]
    curves, xlabel = _numeric(list(rows))
    figure, axes = style.grid(max(len(names), 1), 2.2 if curves else 0.7 + 0.22 * len(rows))
    for ax, name in zip(axes, names, strict=False):
        values = {row: metrics.get(name, ()) for row, metrics in rows.items()}
        shown = _axis_label(name)
        marked = {row for row, metric in different if metric == name}
        if curves:
            _draw_curves(ax, curves, values, marked)
            ax.set(xlabel=style.drawable(xlabel), ylabel=shown)
        else:
            _draw_lines(ax, values, marked)
            ax.set(xlabel=shown)
    lines = [_line(i, label=style.drawable(label)) for i, label in enumerate(curves)]
    style.add_legend(figure, lines or [_SEED, _MEAN])
    return figure


@style.styled
def draw_sweep_curves(
    rows: Mapping[str, Sequence[Records]], metrics: Sequence[str]
) -> style.Picture:
    """Validation metrics over the steps: means over seeds, with bands of one standard deviation.

    Args:
      rows: name of a row -> the records of each seed.
      metrics: names; those that no row has recorded have no panel.
    """
    curves = {
        metric: {name: series(seeds, "valid", metric) for name, seeds in rows.items()}
        for metric in metrics
    }
    curves = {metric: by_row for metric, by_row in curves.items() if any(by_row.values())}
    figure, axes = style.grid(max(len(curves), 1), 2.6)
    for ax, (metric, by_row) in zip(axes, curves.items(), strict=False):
        for number, values in enumerate(by_row.values()):
            # Each row has its markers at other steps, so that they do not cover each other.
            places = (number % _MARKER_GAP, _MARKER_GAP) if len(values) > 2 * _MARKER_GAP else 1
            style.draw_band(ax, values, **style.line_style(number), markevery=places)
        ax.set(xlabel="step", ylabel=f"validation {_axis_label(metric)}")
    style.add_legend(figure, [_line(i, label=style.drawable(name)) for i, name in enumerate(rows)])
    return figure


@style.styled
def draw_differences(tests: Sequence[SeedTest], base: str) -> style.Picture:
    """Differences from the first row with their 95% intervals, a panel for each metric.

    A filled dot is a difference by the corrected test. The label of any other row says how many
    seeds would decide.

    `tests` are those of `compare_seeds`, and `base` is the name of the first row.
    """
    metrics = list(dict.fromkeys(test.metric for test in tests))
    rows = list(dict.fromkeys(test.name for test in tests))
    figure, axes = style.grid(max(len(metrics), 1), 0.7 + 0.22 * len(rows))
    for ax, metric in zip(axes, metrics, strict=False):
        labels: list[str] = []
        for test in (test for test in tests if test.metric == metric):
            interval = test.difference
            height = len(labels)
            ax.plot([interval.low, interval.high], [height] * 2, color=_BLUE, marker="|", ms=5)
            face = _BLUE if test.differs else "white"
            ax.plot([interval.mean], [height], "o", color=_BLUE, mfc=face)
            needed = f" ({test.seeds_to_decide} seeds)" if test.seeds_to_decide else ""
            mark = f" {style.MARK}" if test.differs else needed
            labels.append(style.drawable(test.name) + mark)
        ax.axvline(0, color="0.4", lw=0.8, ls="--")
        style.label_rows(ax, labels)
        ax.set(xlabel=f"{_axis_label(metric)}, difference from {style.drawable(base)}")
    style.add_legend(figure, [_INTERVAL, _DIFFERS])
    return figure


def is_geometric(numbers: Sequence[float]) -> bool:
    """Returns True if positive numbers, in order, have more equal ratios than differences."""
    if min(numbers) <= 0 or len(numbers) < _FEWEST:
        return False
    # Relative spread of the gaps; 0 where all are equal.
    gaps = [np.diff(values) for values in (np.log(numbers), np.array(numbers, float))]
    of_ratios, of_differences = (np.std(gap) / np.mean(gap) for gap in gaps)
    return bool(of_ratios < of_differences)


def _numeric(names: Sequence[str]) -> tuple[dict[str, dict[float, str]], str]:
    """Label of each curve -> {number: row}, and the label of the axis. Empty if the rows are not
    numbers: each is the same text with another number, and each text has at least three."""
    curves = defaultdict[tuple[str, str], dict[float, str]](dict)
    for name in names:
        numbers = list(_NUMBER.finditer(name))
        if not numbers:
            return {}, ""
        last = numbers[-1]
        text = (name[: last.start()], name[last.end() :])
        if curves[text].setdefault(float(last[0]), name) != name:  # two rows of one number
            return {}, ""
    if min(map(len, curves.values()), default=0) < _FEWEST:
        return {}, ""
    ends = {after for _, after in curves}
    shared = ends.pop() if len(ends) == 1 else ""
    labels = [f"{before}{'' if shared else after}".strip(" =:_,") for before, after in curves]
    if len(curves) == 1:
        shared = f"{labels[0]} {shared}"
    sorted_rows = [dict(sorted(rows.items())) for rows in curves.values()]
    rows_by_label = dict(zip(labels, sorted_rows, strict=True))
    return rows_by_label, shared.strip(" =:_,") or "number in the name of the row"


def _axis_label(metric: str) -> str:
    return style.drawable(UNITS.get(metric, metric))


def _line(number: int, label: str) -> Line2D:
    return Line2D([], [], **style.line_style(number), label=label)


def _draw_curves(
    ax: Axes,
    curves: Mapping[str, Mapping[float, str]],
    values: Mapping[str, Sequence[float | None]],
    marked: Collection[str],
) -> None:
    seeds_at = defaultdict[float, list[float | None]](list)
    for number, rows in enumerate(curves.values()):
        curve = {x: finite(values[row]) for x, row in rows.items() if finite(values[row])}
        style.draw_band(ax, curve, **style.line_style(number))
        for x, row in rows.items():
            seeds_at[x] += values[row]
    above: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "bottom"}
    for x, seeds in seeds_at.items():
        mark = style.MARK if any(rows.get(x) in marked for rows in curves.values()) else ""
        ax.annotate(f"{mark} {diverged(seeds)}".strip(), (x, 1), **above, fontsize=6)
    numbers = sorted(seeds_at)
    if is_geometric(numbers):
        ax.set_xscale("log")
        if len(numbers) <= _MOST_TICKS:
            ax.set_xticks(numbers, [f"{x:g}" for x in numbers])
            ax.minorticks_off()


def _draw_lines(
    ax: Axes, values: Mapping[str, Sequence[float | None]], marked: Collection[str]
) -> None:
    labels = []
    bar: dict[str, Any] = {"fmt": "|", "color": _ORANGE, "capsize": 2.5, "elinewidth": 1}
    for height, (row, seeds) in enumerate(values.items()):
        dots = finite(seeds)
        ax.plot(dots, [height] * len(dots), "o", color=_BLUE, alpha=0.4, mew=0)
        if dots:
            ax.errorbar(np.mean(dots), height, xerr=deviation(dots), **bar, ms=8)
        note = diverged(seeds)
        mark = f" {style.MARK}" if row in marked else ""
        labels.append(style.drawable(row) + mark + (f" ({note})" if note else ""))
    style.label_rows(ax, labels)
