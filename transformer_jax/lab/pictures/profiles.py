# SPDX-License-Identifier: Apache-2.0
"""Picture of profiles: how a score changes over ordered groups, such as lengths of sentences."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.lab.pictures.style import (
    COLORS,
    LINES,
    MARKERS,
    Picture,
    add_legend,
    draw_band,
    drawable,
    grid,
    styled,
)

type Profiles = Mapping[str, Sequence[Sequence[float]]]
"""Name -> values of the seeds in each group."""


@styled
def draw_profiles(
    panels: Mapping[str, Profiles], groups: Sequence[str], xlabel: str, ylabel: str
) -> Picture:
    """Means of the seeds in each group, with a band of one standard deviation.

    Args:
      panels: title of a panel -> its profiles.
      groups: their names, in order.
    """
    figure, axes = grid(len(panels), 2.6)
    names = list(dict.fromkeys(name for profiles in panels.values() for name in profiles))
    lines: dict[str, Any] = {}
    for (title, profiles), ax in zip(panels.items(), axes, strict=True):
        for name, values in profiles.items():
            number = names.index(name)
            style = {
                "color": COLORS[number % len(COLORS)],
                "marker": MARKERS[number % len(MARKERS)],
                "ls": LINES[number % len(LINES)],
            }
            seeds_by_x = {float(x): seeds for x, seeds in enumerate(values) if len(seeds)}
            draw_band(ax, seeds_by_x, **style, label=drawable(name))
            if seeds_by_x:
                lines.setdefault(name, ax.lines[-1])
        ax.set_xticks(range(len(groups)), list(map(drawable, groups)))
        ax.set(title=drawable(title), xlabel=drawable(xlabel), ylabel=drawable(ylabel))
        ax.set_ylim(bottom=0)
    add_legend(figure, list(lines.values()))
    return figure
