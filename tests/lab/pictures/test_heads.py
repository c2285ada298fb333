# SPDX-License-Identifier: Apache-2.0
"""Picture of attention: the cells are the weights beside their tokens."""

import numpy as np

from transformer_jax.lab.pictures import draw_heads
from transformer_jax.lab.pictures.style import FULL


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


def test_a_picture_is_no_wider_than_a_page():
    for keys in (1, 12, 50, 200):
        figure = draw_heads(np.ones((4, 2, keys)) / keys, ["a", "b"], ["k"] * keys)
        assert figure.get_figwidth() <= FULL + 1e-6
