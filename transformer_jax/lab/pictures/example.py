# SPDX-License-Identifier: Apache-2.0
"""Pictures of one example: the attention of all heads of a layer, and a constituency tree."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.colors import PowerNorm

from transformer_jax.errors import UserError, user_errors
from transformer_jax.lab.pictures.style import COLORS, FULL, Picture, drawable, picture, styled
from transformer_jax.trees import Tree, parse_tree

_MOST_COLUMNS = 4
# Inches.
_LEAST_CELL = 0.1
_MOST_CELL = 0.2
_LABELS = 0.6
_TITLE = 0.25

_FONT = 8  # points
# Inches: width of a letter of this font, between neighbours, and from a level to the next.
_LETTER = 0.072
_GAP = 0.12
_LEVEL = 0.36
_LARGEST = 200.0  # inches; Agg draws at most 2**16 pixels


@styled
def draw_heads(
    weights: Float[np.ndarray, "H T S"], queries: Sequence[str], keys: Sequence[str]
) -> Picture:
    """Heat map of each head: queries from top to bottom, keys from left to right.

    The shade is the square root of the weight, which makes small weights visible.
    """
    heads, T, S = weights.shape
    room = FULL - 2 * _LABELS
    columns = min(heads, _MOST_COLUMNS, max(1, int(room / (_LEAST_CELL * S))))
    rows = -(-heads // columns)  # rounded up
    cell = min(_MOST_CELL, room / (columns * S))
    font = min(7.0, 66 * cell)  # points: a little less than a cell
    width = max(2.2, columns * cell * S + 2 * _LABELS)
    figure = picture(width, rows * (cell * T + _TITLE) + 1.5 * _LABELS + _TITLE)
    axes = figure.subplots(rows, columns, squeeze=False)
    scale = PowerNorm(gamma=0.5, vmin=0, vmax=1)
    for head, ax in enumerate(axes.flat):
        if head >= heads:
            ax.remove()
            continue
        image = ax.imshow(weights[head], cmap="Blues", norm=scale, aspect="auto")
        ax.set_title(f"head {head}", fontsize=7, pad=2)
        ax.tick_params(length=0, labelsize=font, pad=1)
        in_first_column = head % columns == 0
        has_none_below = head + columns >= heads
        ax.set_yticks(range(T), list(map(drawable, queries)) if in_first_column else [""] * T)
        labels = list(map(drawable, keys)) if has_none_below else [""] * S
        ax.set_xticks(range(S), labels, rotation=90)
    figure.supxlabel("key", fontsize=8)
    figure.supylabel("query", fontsize=8)
    ticks = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 1)
    label = "attention weight"
    figure.colorbar(image, ax=figure.axes, fraction=0.03, ticks=ticks, label=label)
    return figure


@styled
def draw_tree(tree: str | Tree) -> Picture:
    """Draws a tree, given in brackets such as "(S (NP (DT The) (NN dog)) (VP (VBZ runs)))".

    Raises:
      UserError: the text is no tree, or the picture would be too large.
    """
    if isinstance(tree, str):
        with user_errors(f"{tree!r} is no tree"):
            tree = parse_tree(tree)
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
