# SPDX-License-Identifier: Apache-2.0
"""Style: formats by suffix, text of users, sizes."""

import matplotlib as mpl
import pytest

from transformer_jax.errors import UserError
from transformer_jax.lab.pictures import save_figure
from transformer_jax.lab.pictures.style import STYLE, drawable, grid

BEGINNINGS = {"a.png": b"\x89PNG\r\n\x1a\n", "b.SVG": b"<?xml", "c.pdf": b"%PDF-1."}


def figure(title="title"):
    drawn, (ax,) = grid(1)
    ax.plot([1, 2], [3, 4])
    ax.set_title(drawable(title))
    return drawn


@pytest.mark.parametrize("name", BEGINNINGS)
def test_the_suffix_names_the_format(tmp_path, name):
    """Text of users is drawn as text, and the style is not left behind."""
    odd = r"$x a|b & <c> \alpha_1^2 % #" + "\n\ud800"
    save_figure(figure(odd), tmp_path / "new" / name)
    written = (tmp_path / "new" / name).read_bytes()
    assert written.startswith(BEGINNINGS[name])
    assert b"<svg" in written[:1000] or name != "b.SVG"
    save_figure(figure(odd), tmp_path / "again" / name)
    assert (tmp_path / "again" / name).read_bytes() == written  # without the time of writing
    assert mpl.rcParams["font.size"] != STYLE["font.size"]
    for other in ("a.jpeg", "plot", ".png", "a.png.gz"):
        with pytest.raises(UserError, match=r"end it in \.png, \.svg or \.pdf"):
            save_figure(figure(), tmp_path / "other" / other)
    assert not (tmp_path / "other").exists()


def test_drawable_text():
    assert drawable("$x$ _y") == r"\$x\$ _y"
    assert drawable("_x\0") == " _x\N{REPLACEMENT CHARACTER}"
    assert len(drawable("x" * 500)) == 60
