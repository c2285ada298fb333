"""Pictures: the curves of runs, and a config's learning rate and position encodings."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Records = Sequence[Mapping[str, Any]]
"""What a run's metrics.jsonl holds: objects with `step`, `split` and metrics."""

_SCORES = ("bleu", "exact_match", "f1", "accuracy")
_PANEL_WIDTH, _PANEL_HEIGHT = 6.0, 3.8  # inches


def draw_curves(runs: Mapping[str, Records]) -> Figure:
    """Loss, score, learning rate and tokens a second over the steps of one or several runs.

    Validation is dashed and marked. A metric that no run has recorded has no panel.

    Args:
      runs: a label for each run, and its records.
    """
    score = next((name for name in _SCORES if _any_has(runs, "valid", name)), "")
    panels = [
        ("loss (nats a token)", "loss", ("train", "valid")),
        (f"validation {score}", score, ("valid",)),
        ("learning rate", "learning_rate", ("train",)),
        ("tokens a second, without padding", "tokens_per_s", ("train",)),
    ]
    panels = [panel for panel in panels if any(_any_has(runs, s, panel[1]) for s in panel[2])]
    figure, axes = grid(len(panels), columns=2)
    for ax, (title, name, splits) in zip(axes, panels, strict=True):
        for number, (label, records) in enumerate(runs.items()):
            for split in splits:
                steps, values = _series(records, split, name)
                style: dict[str, Any] = {"color": f"C{number}"}
                style |= {"ls": "--", "marker": "o", "ms": 3} if split == "valid" else {"lw": 1.2}
                if steps:
                    ax.plot(steps, values, **style, label=f"{label} {split}")
        ax.set(title=title, xlabel="step")
        ax.grid(alpha=0.3)
        ax.legend(fontsize="small")
    return figure


def draw_recipe(
    schedule: Callable[[Any], Any], num_steps: int, encodings: np.ndarray | None
) -> Figure:
    """The learning rate of each update, and what the positions add to the embeddings.

    Args:
      schedule: the learning rate as a function of the updates done.
      num_steps: updates in all.
      encodings: [L, D], the vector added at each position; None: nothing is added.
    """
    figure, axes = grid(1 if encodings is None else 3, columns=3)
    counts = np.unique(np.linspace(0, num_steps - 1, 500).astype(int))
    axes[0].plot(counts + 1, [float(schedule(count)) for count in counts])
    axes[0].set(title="learning rate", xlabel="update")
    axes[0].grid(alpha=0.3)
    if encodings is not None:
        _draw_encodings(figure, axes[1], axes[2], encodings)
    return figure


def _draw_encodings(figure: Figure, whole: Axes, few: Axes, encodings: np.ndarray) -> None:
    largest = np.abs(encodings).max()
    image = whole.imshow(encodings.T, cmap="RdBu", aspect="auto", vmin=-largest, vmax=largest)
    whole.set(title="position encodings", xlabel="position", ylabel="dimension")
    figure.colorbar(image, ax=whole)
    width = encodings.shape[1]
    # The first dimensions oscillate too fast to see.
    for dimension in sorted({width // 8, width // 4, width // 4 + 1, width // 2}):
        few.plot(encodings[:, dimension], label=f"dimension {dimension}", lw=1.2)
    few.set(title="some of their dimensions", xlabel="position")
    few.grid(alpha=0.3)
    few.legend(fontsize="small")


def grid(panels: int, columns: int, height: float = _PANEL_HEIGHT) -> tuple[Figure, list[Axes]]:
    """A figure and its panels, filled row by row.

    Args:
      panels: how many.
      columns: at most so many panels stand in a row.
      height: of a panel, in inches.
    """
    columns = min(panels, columns)
    rows = -(-panels // columns)
    figure = Figure(figsize=(_PANEL_WIDTH * columns, height * rows), layout="constrained", dpi=120)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes[panels:]:
        ax.remove()
    return figure, axes[:panels]


def _series(records: Records, split: str, name: str) -> tuple[list[int], list[float]]:
    found = [r for r in records if r.get("split") == split and r.get(name) is not None]
    return [record["step"] for record in found], [record[name] for record in found]


def _any_has(runs: Mapping[str, Records], split: str, name: str) -> bool:
    return any(_series(records, split, name)[0] for records in runs.values())
