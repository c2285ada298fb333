# SPDX-License-Identifier: Apache-2.0
"""Picture of a sweep: curves for rows that are numbers, lines for others."""

import math

import numpy as np
import pytest

from transformer_jax.lab import pictures
from transformer_jax.lab.pictures.sweep import is_geometric
from transformer_jax.scoring.statistics import compare_seeds


def rows(names):
    return {name: {"loss": [float(i), i + 2.0]} for i, name in enumerate(names)}


def test_rows_that_are_numbers_are_a_curve_with_a_band():
    figure = pictures.draw_sweep(rows(["lr=1e-3", "lr=1e-4", "lr=1e-2"]))
    (ax,) = figure.axes
    (line,) = ax.get_lines()
    assert list(line.get_xdata()) == [1e-4, 1e-3, 1e-2] and list(line.get_ydata()) == [2, 1, 3]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale()) == ("lr", "loss (nats)", "log")
    heights = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (min(heights), max(heights)) == pytest.approx((1 - 2**0.5, 3 + 2**0.5))


def test_rows_that_differ_in_a_word_too_are_several_curves():
    names = [f"{kind}, {count} updates" for kind in ("pre", "post") for count in (100, 200, 300)]
    figure = pictures.draw_sweep(rows(names))
    (ax,) = figure.axes
    assert [len(line.get_xdata()) for line in ax.get_lines()] == [3, 3]
    assert (ax.get_xlabel(), ax.get_xscale()) == ("updates", "linear")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["pre", "post"]


def test_other_rows_are_one_line_each():
    for names in ("base|lr 1|lr 2|lr 3", "A 1|A 2|B 1|B 2", "x1|x2|x3", "lr 1|lr 1.0|lr 2"):
        figure = pictures.draw_sweep(rows(names.split("|")))
        (ax,) = figure.axes
        assert [label.get_text() for label in ax.get_yticklabels()] == names.split("|")
        assert ax.get_xlabel() == "loss (nats)"
        legend = [text.get_text() for text in figure.legends[0].get_texts()]
        assert legend == ["one seed", "mean and one deviation"]


def test_seeds_that_diverged_are_told_and_not_drawn():
    """Metrics without a number have no panel."""
    row = {"loss": [1.0, math.nan], "bleu": [None, None], "f1": [math.nan, math.nan]}
    (ax,) = pictures.draw_sweep({"$a$": row, "b": {"loss": [2.0, 3.0]}}).axes
    label, _ = (label.get_text() for label in ax.get_yticklabels())
    assert label == r"\$a\$ (1 of 2 diverged)"
    assert list(ax.get_lines()[0].get_xdata()) == [1.0]
    numbers = {f"lr {x}": {"loss": [1.0, math.inf if x == 9 else 1.0]} for x in (1, 3, 9)}
    (ax,) = pictures.draw_sweep(numbers).axes
    notes = [(note.get_text(), note.xy[0]) for note in ax.texts if note.get_text()]
    assert notes == [("1 of 2 diverged", 9)]


def test_numbers_are_geometric_if_ratios_are_more_equal():
    assert is_geometric([1e-4, 3e-4, 1e-3]) and is_geometric(list(2 ** np.arange(5)))
    assert not is_geometric([1, 2, 3]) and not is_geometric([0, 1, 10]) and not is_geometric([1, 9])


def test_curves_of_many_rows_have_bands_and_styles_of_their_own(tmp_path):
    def records(shift):
        return [{"step": step, "split": "valid", "loss": 1 / step + shift} for step in range(1, 9)]

    rows = {f"row {n}": [records(n), records(n + 0.5)] for n in range(9)}
    figure = pictures.draw_sweep_curves(rows, ["loss", "bleu"])
    (ax,) = figure.axes  # no row has recorded the other
    assert len({(x.get_color(), x.get_marker(), x.get_linestyle()) for x in ax.lines}) == 9
    assert len(ax.collections) == 9
    pictures.save_figure(figure, tmp_path / "curves.pdf")
    written = (tmp_path / "curves.pdf").read_bytes()
    assert b"/FontFile2" in written and b"/Type3" not in written


def test_values_that_differ_are_marked_and_differences_have_intervals():
    values = {"base": [1.0, 1.1, 0.9], "far": [3.0, 3.1, 2.9], "close": [1.0, 1.3, 0.9]}
    found = compare_seeds("loss", values)
    marks = [(test.name, "loss") for test in found if test.differs]
    (ax,) = pictures.draw_sweep({name: {"loss": each} for name, each in values.items()}, marks).axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["base", "far \N{NOT EQUAL TO}", "close"]
    (ax,) = pictures.draw_differences(found, "base").axes
    seeds = found[1].seeds_to_decide
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["far \N{NOT EQUAL TO}", f"close ({seeds} seeds)"]
    low, high = found[0].difference.low, found[0].difference.high
    assert list(ax.lines[0].get_xdata()) == [low, high]
    assert ax.lines[1].get_markerfacecolor() != ax.lines[3].get_markerfacecolor() == "white"
