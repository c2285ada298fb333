# SPDX-License-Identifier: Apache-2.0
"""Picture of a constituency tree: labels above their constituents, words below."""

import dataclasses
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.lab.pictures.style import COLORS, Picture, drawable, styled
from transformer_jax.trees import Tree, parse_tree

_FONT = 8  # points
# Inches: width of a letter of this font, between neighbours, and from a level to the next.
_LETTER = 0.072
_GAP = 0.12
_LEVEL = 0.36
_LARGEST = 200.0  # inches; Agg draws at most 2**16 pixels


@styled
def draw_tree(tree: str | Tree) -> Picture:
    """Draws a tree, given in brackets such as "(S (NP (DT The) (NN dog)) (VP (VBZ runs)))".

    Raises:
      UserError: the text is no tree, or the picture would be too large.
    """
    if isinstance(tree, str):
        try:
            tree = parse_tree(tree)
        except ValueError as error:
            raise UserError(f"{tree!r} is no tree: {error}") from error
    places, edges, width = _layout(tree)
    height = _LEVEL * (max(place.depth for place in places) + 1)
    if max(width, height) > _LARGEST:
        raise UserError("the tree is too large for a picture")
    figure = Picture(figsize=(width, height))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_axis_off()
    ax.set(xlim=(0, width), ylim=(height, 0))
    for upper, lower in edges:
        # From below one text to above the other.
        ys = (_y(upper.depth) + 0.08, _y(lower.depth) - 0.09)
        ax.plot([upper.x, lower.x], ys, color="0.6", lw=0.7)
    for place in places:
        color = "black" if place.is_word else COLORS[0]
        centered: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": _FONT}
        ax.text(place.x, _y(place.depth), drawable(place.text), **centered, color=color)
    return figure


@dataclasses.dataclass
class _Place:
    """Horizontal place in inches, and depth in levels, of a label or a word."""

    x: float
    depth: int
    text: str
    is_word: bool = False


def _layout(root: Tree) -> tuple[list[_Place], list[tuple[_Place, _Place]], float]:
    """Places of labels and words, the edges between them, and the width of all.

    Does not recurse: trees may be arbitrarily deep.
    """
    places: list[_Place] = []
    edges: list[tuple[_Place, _Place]] = []
    # Of each open constituent: its label, its children, its left edge, its first place.
    open_nodes: list[tuple[str, list[_Place], float, int]] = [("", [], 0.0, 0)]
    right = _GAP
    for node in root.walk():
        if node is not None and node.word is None:
            open_nodes.append((node.label, [], right, len(places)))
            continue
        if node is not None:
            word = str(node.word)
            room = max(_width(node.label), _width(word))
            label = _Place(right + room / 2, len(open_nodes) - 1, node.label)
            places += [label, _Place(label.x, label.depth + 1, word, is_word=True)]
            edges.append((label, places[-1]))
            right += room + _GAP
        else:  # the end of a constituent
            text, children, left, first = open_nodes.pop()
            # What is below a wider label moves to the label's middle.
            missing = max(0.0, _width(text) + _GAP - (right - left))
            for place in places[first:]:
                place.x += missing / 2
            right += missing
            middle = (children[0].x + children[-1].x) / 2
            label = _Place(middle, len(open_nodes) - 1, text)
            places.append(label)
            edges += [(label, child) for child in children]
        open_nodes[-1][1].append(label)
    return places, edges, right


def _width(text: str) -> float:
    return _LETTER * max(len(drawable(text)), 1)


def _y(depth: int) -> float:
    return _LEVEL * (depth + 0.5)
