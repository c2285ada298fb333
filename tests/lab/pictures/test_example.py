# SPDX-License-Identifier: Apache-2.0
"""Pictures of an example: cells are weights beside their tokens; trees are in order."""

import itertools

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tests.refusals import assert_refused
from transformer_jax.lab.pictures import draw_heads, draw_tree
from transformer_jax.lab.pictures.style import FULL

TREE = "(TOP (S (NP-SBJ-LONG (D I)) (VP-TOO-LONG (V go) (NP (N $x) (N y))) (. .)))"


def test_the_cells_are_the_weights_beside_their_tokens():
    weights = np.random.default_rng(0).dirichlet(np.ones(5), (6, 4))
    figure = draw_heads(weights, list("abcd"), list("ABCDE"))
    *panels, _ = figure.axes
    assert [ax.get_title() for ax in panels] == [f"head {head}" for head in range(6)]
    for head, ax in enumerate(panels):
        np.testing.assert_array_equal(ax.images[0].get_array(), weights[head])
    below = [label.get_text() for label in panels[4].get_xticklabels()]
    beside = [label.get_text() for label in panels[4].get_yticklabels()]
    assert (below, beside) == (list("ABCDE"), list("abcd"))
    for keys in (1, 12, 50, 200):  # no wider than a page
        figure = draw_heads(np.ones((1, 1, keys)) / keys, ["a"], ["k"] * keys)
        assert figure.get_figwidth() <= FULL + 1e-6


def test_words_are_in_order_below_their_labels():
    ax = draw_tree(TREE).axes[0]
    found = {text.get_text(): text.get_position() for text in ax.texts}  # from left and from top
    xs = [found[word][0] for word in ("I", "go", r"\$x", "y")]
    assert xs == sorted(xs)
    assert found["TOP"][1] < found["S"][1] < found["VP-TOO-LONG"][1] < found["NP"][1]
    assert found["NP"][1] < found[r"\$x"][1]
    assert found["NP"][0] == pytest.approx((found[r"\$x"][0] + found["y"][0]) / 2)
    assert found["S"][0] == found["TOP"][0]
    assert len(ax.get_lines()) == len(ax.texts) - 1  # an edge for each node but the root


def test_trees_that_cannot_be_drawn_are_refused():
    deep = "(A " * 3000 + "(B c)" + ")" * 3000
    assert_refused(
        {"is no tree": lambda: draw_tree("(S (NP"), "too large": lambda: draw_tree(deep)}
    )
    assert "<svg" in draw_tree("(A b)")._repr_svg_()


def test_no_texts_overlap():
    figure = draw_tree(TREE)
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
    assert not any(box.overlaps(other) for box, other in itertools.combinations(boxes, 2))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)
