# SPDX-License-Identifier: Apache-2.0
"""Picture of the attention of all heads of a layer."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.colors import PowerNorm

from transformer_jax.lab.pictures.style import FULL, Picture, drawable, picture, styled

_MOST_COLUMNS = 4
# Inches.
_LEAST_CELL = 0.1
_MOST_CELL = 0.2
_LABELS = 0.6
_TITLE = 0.25
_WEIGHT_TICKS = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 1)


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
    bar = figure.colorbar(image, ax=figure.axes, fraction=0.03, ticks=_WEIGHT_TICKS)
    bar.set_label("attention weight")
    return figure
