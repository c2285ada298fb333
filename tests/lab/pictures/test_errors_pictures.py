# SPDX-License-Identifier: Apache-2.0
"""Pictures of errors: what is drawn is what was counted."""

import numpy as np

from transformer_jax.lab.pictures import draw_calibration, draw_confusion, draw_rates, draw_worst
from transformer_jax.scoring.errors import Bin, Decision, Rate

FOUND = [
    *[Decision("x", "$a$", "$a$", 0.9, 1)] * 6,
    *[Decision("x", "$a$", "b", 0.8, 1)] * 2,
    *[Decision("y|&", "b", "b", 0.7, 1)] * 3,
    Decision("z", "c", "d", 0.6, 1),
]


def names(ticks):
    return [label.get_text() for label in ticks]


def test_a_row_of_a_confusion_matrix_is_shares_of_an_expected_label():
    (ax,) = draw_confusion(FOUND).axes
    assert names(ax.get_yticklabels()) == [r"\$a\$ (8)", "b (3)", "c (1)", "d (0)"]
    expected = [[75, 25, 0, 0], [0, 100, 0, 0], [0, 0, 0, 100], [0, 0, 0, 0]]
    np.testing.assert_allclose(ax.images[0].get_array(), expected)
    cells = [text.get_text() for text in ax.texts]
    assert cells == ["75%\n6", "25%\n2", "100%\n3", "100%\n1"]
    # Rare labels are together.
    (ax,) = draw_confusion(FOUND, most=3).axes
    assert names(ax.get_xticklabels()) == [r"\$a\$", "b", "others"]
    np.testing.assert_allclose(ax.images[0].get_array(), [[75, 25, 0], [0, 100, 0], [0, 0, 100]])


def test_a_calibration_curve_is_beside_the_diagonal():
    figure = draw_calibration([Bin(0.5, 0.7, 1), Bin(0.9, 0.8, 1300)])
    (ax,) = figure.axes
    diagonal, model = ax.get_lines()
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [0, 1]
    assert (list(model.get_xdata()), list(model.get_ydata())) == ([0.5, 0.9], [0.7, 0.8])
    assert [text.get_text() for text in ax.texts] == ["1", "1,300"]
    assert "calibration error 0.100" in names(figure.legends[0].get_texts())[1]


def test_rates_have_intervals():
    rates = [Rate("1", 0.25, 0.1, 0.5, 40), Rate("2–3", 0.0, 0.0, 0.2, 7)]
    (ax,) = draw_rates(rates, "words").axes
    assert names(ax.get_yticklabels()) == ["1 (40)", "2–3 (7)"]
    ends = [segment[:, 0].tolist() for segment in ax.collections[0].get_segments()]
    np.testing.assert_allclose(ends, [[0.1, 0.5], [0.0, 0.2]])
    assert ax.get_ylabel() == "words (number)"


def test_the_worst_errors_are_a_table():
    for found, cells in (
        (FOUND, ["x", r"\$a\$", "b", "0.800", "z", "c", "d", "0.600"]),
        ([FOUND[-1]._replace(probability=None)] * 2, ["z", "c", "d", "2"]),
        ([FOUND[0]], []),
    ):
        (ax,) = draw_worst(found).axes
        shown = [text.get_text() for text in ax.texts]
        assert shown[:3] == ["text", "expected", "predicted"] and shown[4:] == cells
