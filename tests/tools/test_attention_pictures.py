"""Heads as pictures."""

import numpy as np
import pytest

from tests.analysis.drawn_attention import SOURCE, TARGET, drawn_attention
from transformer_jax.errors import UserError
from transformer_jax.tools.attention_pictures import draw_heads, plot_attention

ODD = ["$x$", "$\\no_math$", "a\nb", "\x00", "\u2028", "<b>&", "\ud800", "", "</s>"]


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


def test_a_name_says_whether_it_is_an_svg(tmp_path):
    attention = drawn_attention({"encoder": SOURCE, "decoder": TARGET}, heads=2)
    plot_attention(attention, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    plot_attention(attention, tmp_path / "a.SVG", kind="decoder", layer=0)
    assert b"<svg" in (tmp_path / "a.SVG").read_bytes()[:1000]


def test_odd_tokens_are_drawn_as_text(tmp_path):
    plot_attention(drawn_attention({"encoder": ODD}, heads=1), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "<!-- $x$ -->" in text and "\x00" not in text


def test_what_a_model_has_not_is_told(tmp_path):
    attention = drawn_attention({"encoder": SOURCE}, heads=1)
    with pytest.raises(UserError, match="no cross attention; it has encoder"):
        plot_attention(attention, tmp_path / "a.png", kind="cross")
    with pytest.raises(UserError, match="--layer: 2 is none of the layers 0 to 1"):
        plot_attention(attention, tmp_path / "a.png", layer=2)
