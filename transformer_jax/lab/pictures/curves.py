# SPDX-License-Identifier: Apache-2.0
"""Pictures of curves: runs over steps, scores over groups, with bands over seeds; recipes."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from transformer_jax.errors import UserError
from transformer_jax.lab.pictures import style

Records = Sequence[Mapping[str, Any]]
"""Content of metrics.jsonl: objects with `step`, `split` and metrics."""

type Profiles = Mapping[str, Sequence[Sequence[float]]]
"""Name -> values of the seeds in each group."""

UNITS = {
    "loss": "loss (nats)",
    "accuracy": "accuracy (share)",
    "exact_match": "exact match (share)",
    "f1": "F1 (share)",
    "bleu": "BLEU (0 to 100)",
    "bleu_lowercase": "BLEU without case (0 to 100)",
    "chrf": "chrF (0 to 100)",
    "bits_per_byte": "bits per byte",
    "learning_rate": "learning rate",
    "tokens_per_s": "tokens per second",
}
"""Metric -> label of its axis; other metrics are labelled by their names."""

_SPLITS = {"train": "training", "valid": "validation"}
_SCORES = ("bleu", "exact_match", "f1", "accuracy")
"""Scores in order of preference: the first that was recorded has a panel, if none that selects the
best checkpoint is known."""


@style.styled
def draw_curves(
    runs: Mapping[str, Sequence[Records]], selected_by: Collection[str] = ()
) -> style.Picture:
    """Loss, score, learning rate and tokens per second over the steps of one or several runs.

    Several runs differ in color, dashes and markers; validation has the markers. Of one run,
    validation is dashed, too. A run of several seeds is their mean, with a band of one standard
    deviation. Metrics that no run has recorded have no panel.

    Args:
      runs: label -> the records of each seed of a run.
      selected_by: scores that select the best checkpoints of these runs, which have panels.

    Raises:
      UserError: no run has recorded any of these.
    """
    recorded = {
        (record.get("split"), name)
        for seeds in runs.values()
        for records in seeds
        for record in records
        for name, value in record.items()
        if isinstance(value, int | float)
    }
    scores = [name for name in selected_by if ("valid", name) in recorded]
    if not scores:
        scores = [name for name in _SCORES if ("valid", name) in recorded][:1]
    candidates: dict[str, tuple[str, ...]] = dict.fromkeys(("loss", *scores), ("valid",))
    candidates |= {"loss": ("train", "valid"), "learning_rate": ("train",)}
    candidates["tokens_per_s"] = ("train",)
    panels: dict[str, tuple[str, ...]] = {}
    for name, candidate_splits in candidates.items():
        splits = tuple(split for split in candidate_splits if (split, name) in recorded)
        if splits:
            panels[name] = splits
    if not panels:
        raise UserError("no curve to draw: the runs have recorded neither loss nor score")
    figure, axes = style.grid(len(panels))
    for ax, (name, splits) in zip(axes, panels.items(), strict=True):
        for number, (label, seeds) in enumerate(runs.items()):
            for split in splits:
                line = _style(number, split, len(runs) > 1)
                line["label"] = style.drawable(f"{label} {split}")
                style.draw_band(ax, series(seeds, split, name), **line)
        shown = UNITS.get(name, name)
        ax.set(xlabel="step", ylabel=f"validation {shown}" if splits == ("valid",) else shown)
        ax.set_xlim(left=0)  # a single record would have ticks of its own, such as 190 to 210
    drawn = {split for splits in panels.values() for split in splits}
    style.add_legend(figure, _legend(list(runs), drawn))
    return figure


@style.styled
def draw_recipe(
    schedule: Callable[[Any], Any], num_steps: int, encodings: np.ndarray | None
) -> style.Picture:
    """Learning rate of each step, and what positions add to the embeddings.

    Args:
      schedule: number of steps done -> learning rate.
      encodings: [L, D], the vector added at each position; None: nothing is added.
    """
    figure, axes = style.grid(1 if encodings is None else 3)
    counts = np.unique(np.linspace(0, num_steps - 1, 500).astype(int))  # about one a pixel
    axes[0].plot(counts + 1, [float(schedule(count)) for count in counts])
    axes[0].set(xlabel="step", ylabel=UNITS["learning_rate"])
    if encodings is None:
        return figure
    _, whole, few = axes
    largest = np.abs(encodings).max()
    image = whole.imshow(encodings.T, cmap="RdBu", aspect="auto", vmin=-largest, vmax=largest)
    whole.set(xlabel="position", ylabel="dimension")
    whole.grid(False)
    figure.colorbar(image, ax=whole, label="position encoding")
    width = encodings.shape[1]
    # The first dimensions oscillate too fast to see.
    dimensions = sorted({width // 8, width // 4, width // 4 + 1, width // 2})
    for dimension, line in zip(dimensions, style.LINES, strict=False):
        few.plot(encodings[:, dimension], ls=line, label=f"dimension {dimension}")
    few.set(xlabel="position", ylabel="encoding")
    few.legend()
    return figure


@style.styled
def draw_profiles(
    panels: Mapping[str, Profiles], groups: Sequence[str], xlabel: str, ylabel: str
) -> style.Picture:
    """Means of the seeds in each group, with a band of one standard deviation.

    Args:
      panels: title of a panel -> its profiles.
      groups: their names, in order.
    """
    figure, axes = style.grid(len(panels), 2.6)
    names = list(dict.fromkeys(name for profiles in panels.values() for name in profiles))
    lines: dict[str, Any] = {}
    for (title, profiles), ax in zip(panels.items(), axes, strict=True):
        for name, values in profiles.items():
            seeds_by_x = {float(x): seeds for x, seeds in enumerate(values) if len(seeds)}
            line = style.line_style(names.index(name))
            style.draw_band(ax, seeds_by_x, **line, label=style.drawable(name))
            if seeds_by_x:
                lines.setdefault(name, ax.lines[-1])
        ax.set_xticks(range(len(groups)), list(map(style.drawable, groups)))
        ax.set(title=style.drawable(title))
        ax.set(xlabel=style.drawable(xlabel), ylabel=style.drawable(ylabel))
        ax.set_ylim(bottom=0)
    style.add_legend(figure, list(lines.values()))
    return figure


def _legend(runs: Sequence[str], splits: Collection[str]) -> list[Line2D]:
    """Entries for the runs, if there are several, and for the splits, if there are two."""
    several = len(runs) > 1
    entries = [
        Line2D([], [], **_style(number, "valid", True), label=style.drawable(label))
        for number, label in enumerate(runs if several else ())
    ]
    if len(splits) > 1:
        gray = {"color": "0.4", "ls": "-"} if several else {}
        for split, name in _SPLITS.items():
            entries.append(Line2D([], [], **_style(0, split, several) | gray, label=name))
    return entries


def _style(number: int, split: str, several: bool) -> dict[str, Any]:
    """Style of a curve, which black and white print keeps apart from the others."""
    line = style.line_style(number)
    if split == "train":
        del line["marker"]
    elif not several:
        line["ls"] = "--"
    return line


def series(seeds: Sequence[Records], split: str, name: str) -> dict[float, list[float]]:
    """Step -> value of each seed that has recorded it there, in order of steps."""
    values = defaultdict[float, list[float]](list)
    for records in seeds:
        for record in records:
            if record.get("split") == split and isinstance(record.get(name), int | float):
                values[record["step"]].append(record[name])
    return dict(sorted(values.items()))
