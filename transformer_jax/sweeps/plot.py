"""A sweep's rows as a picture."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from transformer_jax.sweeps.tables import Row
from transformer_jax.tools.plots import grid


def draw_rows(rows: Sequence[Row]) -> Figure:
    """A panel for each metric: a line for each row, its seeds as dots, mean and deviation."""
    names = list(dict.fromkeys(name for row in rows for name in row.metrics))
    figure, axes = grid(len(names), columns=2, height=0.8 + 0.35 * len(rows))
    for ax, name in zip(axes, names, strict=True):
        for place, row in enumerate(rows):
            values = row.finite(name)
            ax.plot(values, [place] * len(values), "o", color="C0", alpha=0.4, ms=4)
            if values:
                spread = row.deviation(name) if len(values) > 1 else 0.0
                ax.errorbar(row.mean(name), place, xerr=spread, fmt="|", color="C3", capsize=3)
        ax.set(title=name, yticks=range(len(rows)), yticklabels=[row.name for row in rows])
        ax.invert_yaxis()
        ax.grid(alpha=0.3, axis="x")
    return figure
