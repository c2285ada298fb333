# SPDX-License-Identifier: Apache-2.0
"""Style: formats by suffix, text of users, sizes."""

import pytest

from transformer_jax.errors import UserError
from transformer_jax.lab.pictures import save_figure
from transformer_jax.lab.pictures.style import COLUMN, FULL, STYLE, drawable, grid

BEGINNINGS = {"a.png": b"\x89PNG\r\n\x1a\n", "b.SVG": b"<?xml", "c.pdf": b"%PDF-1."}


def figure(title="title"):
    drawn, (ax,) = grid(1)
    ax.plot([1, 2], [3, 4])
    ax.set_title(drawable(title))
    return drawn


@pytest.mark.parametrize("name", BEGINNINGS)
def test_the_suffix_names_the_format(tmp_path, name):
    save_figure(figure(), tmp_path / "new" / name)
    written = (tmp_path / "new" / name).read_bytes()
    assert written.startswith(BEGINNINGS[name])
    assert b"<svg" in written[:1000] or name != "b.SVG"
    save_figure(figure(), tmp_path / "again" / name)
    assert (tmp_path / "again" / name).read_bytes() == written  # without the time of writing


@pytest.mark.parametrize("name", ["a.jpeg", "plot", ".png", "a.png.gz"])
def test_other_suffixes_are_errors(tmp_path, name):
    with pytest.raises(UserError, match=r"end it in \.png, \.svg or \.pdf"):
        save_figure(figure(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_picture_shows_itself_in_a_notebook():
    assert "<svg" in figure()._repr_svg_()


@pytest.mark.parametrize("text", ["$x", "a|b & <c>", "a\nb", "\ud800", "\\alpha_1^2", "%", "#"])
def test_text_of_users_is_drawn_as_text(tmp_path, text):
    for name in BEGINNINGS:
        save_figure(figure(text), tmp_path / name)


def test_drawable_text():
    assert drawable("$x$ _y") == r"\$x\$ _y"
    assert drawable("_x\0") == " _x\N{REPLACEMENT CHARACTER}"
    assert len(drawable("x" * 500)) == 60


def test_one_panel_has_the_width_of_a_column_and_more_that_of_a_page():
    for panels, width in ((1, COLUMN), (2, FULL), (3, FULL)):
        drawn, axes = grid(panels)
        assert drawn.get_figwidth() == width and drawn.axes == axes and len(axes) == panels


def test_the_style_is_not_left_behind(tmp_path):
    import matplotlib as mpl

    save_figure(figure(), tmp_path / "a.png")
    assert mpl.rcParams["font.size"] != STYLE["font.size"]
