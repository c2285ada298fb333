# SPDX-License-Identifier: Apache-2.0
"""Style of pictures for papers, and how they are written: PDF and SVG as vectors, PNG as pixels."""

import functools
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

from transformer_jax.errors import UserError
from transformer_jax.runtime.files import atomic_writer
from transformer_jax.scoring.statistics import deviation

COLUMN = 3.35
"""Width in inches of a column of a paper with two columns."""
FULL = 7.0
"""Width in inches of its page."""

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colors of Okabe and Ito (2008), which color-blind readers tell apart."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARK = "\N{NOT EQUAL TO}"
"""Marks a value that differs from the first row's."""

STYLE: dict[Any, Any] = {
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 8),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 7),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "axes.linewidth": 0.6,
    "axes.formatter.limits": (-3, 5),
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "axes.prop_cycle": cycler(color=COLORS),
    **dict.fromkeys(("figure.dpi", "savefig.dpi"), 200),
    "pdf.fonttype": 42,  # journals refuse Type 3
    "svg.hashsalt": "transformer_jax",  # equal pictures are equal files
}

_DATES = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Formats of pictures, and the metadata that leaves out the time of writing."""
_LONGEST_LABEL = 60
_LETTER = 0.058  # inches, of the legend's font


class Picture(Figure):
    """A figure that notebooks show as SVG, with or without `%matplotlib inline`."""

    def _repr_svg_(self) -> str:
        return rendered(self, "svg").decode()


def styled[**P, R](draw: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function that draws: it draws in `STYLE`."""

    @functools.wraps(draw)
    def drawing(*args: P.args, **kwargs: P.kwargs) -> R:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawing


def picture(width: float, height: float) -> Picture:
    """An empty picture of a size in inches."""
    return Picture(figsize=(width, height), layout="constrained")


def grid(panels: int, height: float = 2.2) -> tuple[Picture, list[Axes]]:
    """A picture and its panels, filled row by row: one has the width of a column, more are two in a
    row. `height` is that of a panel, in inches."""
    columns = min(panels, 2)
    rows = -(-panels // columns)
    figure = picture(FULL if columns == 2 else COLUMN, height * rows)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes[panels:]:
        ax.remove()
    for ax in axes[:panels]:
        ax.grid()
        ax.set_axisbelow(True)
    return figure, axes[:panels]


def add_legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Adds the one legend of a picture, below its panels; none for fewer than two entries."""
    if len(handles) > 1:
        longest = max(len(str(handle.get_label())) for handle in handles)
        columns = max(1, int(figure.get_figwidth() / (_LETTER * longest + 0.5)))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def label_rows(ax: Axes, labels: Sequence[str]) -> None:
    """Labels the rows of a panel, the first at the top."""
    ax.set(yticks=range(len(labels)), yticklabels=labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.grid(False, axis="y")


def line_style(number: int) -> dict[str, Any]:
    """Color, marker and line of a curve; 49 curves have different ones."""
    # After each turn of the 7 colors, markers and lines are shifted by one.
    shifted = number + number // len(COLORS)
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[shifted % len(MARKERS)],
        "ls": LINES[shifted % len(LINES)],
    }


def draw_band(ax: Axes, values: Mapping[float, Sequence[float]], **style: Any) -> None:
    """Draws a curve through the means at each x, with a band of one standard deviation of the
    sample where several seeds have a value. One x is a dot, as a line would not show."""
    if not values:
        return
    if len(values) == 1:
        style = {"marker": "o"} | style
    means = np.array([np.mean(seeds) for seeds in values.values()])
    around = np.array([deviation(seeds) for seeds in values.values()])
    ax.plot(list(values), means, **style)
    if around.any():
        band = {"color": style["color"], "alpha": 0.2, "lw": 0}
        ax.fill_between(list(values), means - around, means + around, **band)


def picture_format(output: Path) -> str:
    """Format of a picture by the suffix of its name: png, svg or pdf; else raises UserError."""
    suffix = output.suffix.lower().removeprefix(".")
    if suffix not in _DATES:
        raise UserError(f"{str(output)!r} is no name of a picture; end it in .png, .svg or .pdf")
    return suffix


def save_figure(figure: Figure, output: Path) -> None:
    """Writes a PNG, an SVG or a PDF, by the suffix of the name; raises UserError if it cannot."""
    content = rendered(figure, picture_format(output))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(output) as file:
            file.write(content)
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error


def rendered(figure: Figure, form: str) -> bytes:
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format=form, metadata=_DATES[form])
    return buffer.getvalue()


def drawable(text: str) -> str:
    r"""A user's text for matplotlib, which would read `$` as mathematics.

    Characters that cannot be drawn, such as line feeds, become U+FFFD. A text that begins with "_"
    gets a space before it, without which a legend leaves it out. A long text is cut.
    """
    unknown = "\N{REPLACEMENT CHARACTER}"
    shown = "".join(c if c.isprintable() else unknown for c in text)
    if len(shown) > _LONGEST_LABEL:
        shown = shown[: _LONGEST_LABEL - 1] + "\N{HORIZONTAL ELLIPSIS}"
    shown = shown.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
