"""Pictures of attention for papers: the heads of a layer, each a heat map."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from transformer_jax.analysis.attention import Attention
from transformer_jax.analysis.pages.attention_page import TITLES
from transformer_jax.errors import UserError
from transformer_jax.tools.pictures import save_figure

_COLUMNS = 4
_CELL, _SMALLEST, _LARGEST, _LABELS = 0.2, 1.2, 6.0, 0.8  # inches
_TICKS = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 1)


def plot_attention(
    attention: Attention, output: Path, kind: str | None = None, layer: int | None = None
) -> None:
    """Draws the heads of a layer into an SVG, where the file's name ends so, or a PNG.

    Args:
      kind: of `attention.kinds`; by default the last of them, cross-attention where there is any.
      layer: by default the last one.

    Raises:
      UserError: the model has no such kind or layer, or the file cannot be written.
    """
    kind = kind or attention.kinds[-1]
    if kind not in attention.kinds:
        known = ", ".join(attention.kinds)
        raise UserError(f"--kind: this model has no {kind} attention; it has {known}")
    weights = attention.weights(kind)
    if layer is not None and layer >= len(weights):
        raise UserError(f"--layer: {layer} is none of the layers 0 to {len(weights) - 1}")
    layer = len(weights) - 1 if layer is None else layer
    queries, keys = (attention.tokens[stack] for stack in attention.stacks(kind))
    figure = draw_heads(weights[layer], queries, keys)
    figure.suptitle(f"{TITLES[kind]}, layer {layer}", fontsize=10)
    save_figure(figure, output)


def draw_heads(
    weights: Float[np.ndarray, "H T S"], queries: Sequence[str], keys: Sequence[str]
) -> Figure:
    """A heat map of each head: queries downwards, keys to the right, as dark as the root of the
    weight, so that small weights can be told from none."""
    heads, T, S = weights.shape
    columns = min(heads, _COLUMNS)
    rows = -(-heads // columns)
    width, height = (min(_LARGEST, max(_SMALLEST, _CELL * count)) for count in (S, T))
    size = (columns * width + 2 * _LABELS, rows * (height + 0.25) + 2 * _LABELS)
    figure = Figure(figsize=size, layout="constrained", dpi=150)
    axes = figure.subplots(rows, columns, squeeze=False)
    scale = PowerNorm(gamma=0.5, vmin=0, vmax=1)
    for head, ax in enumerate(axes.flat):
        if head >= heads:
            ax.remove()
            continue
        picture = ax.imshow(weights[head], cmap="Blues", norm=scale, aspect="auto")
        ax.set_title(f"head {head}", fontsize=8)
        ax.tick_params(length=0, labelsize=6)
        in_first, in_last = head % columns == 0, head + columns >= heads
        ax.set_yticks(range(T), _labels(queries) if in_first else [""] * T, parse_math=False)
        marks = _labels(keys) if in_last else [""] * S
        ax.set_xticks(range(S), marks, rotation=90, parse_math=False)
    bar = figure.colorbar(picture, ax=figure.axes, fraction=0.02, ticks=_TICKS)
    bar.ax.tick_params(labelsize=6)
    return figure


def _labels(tokens: Sequence[str]) -> list[str]:
    """Tokens without what is no character of a picture: line breaks, control characters."""
    unknown = "\N{REPLACEMENT CHARACTER}"
    return ["".join(c if c.isprintable() else unknown for c in token) for token in tokens]
