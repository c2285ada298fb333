# SPDX-License-Identifier: Apache-2.0
"""Plots: curves of runs, attention of a run, and a config's learning rate and positions."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from transformer_jax.analysis.activations import Attention
from transformer_jax.analysis.pages.attention_page import TITLES
from transformer_jax.errors import UserError
from transformer_jax.logs.records import read_lines
from transformer_jax.nn.positions import encoding_class
from transformer_jax.runs.config import Settings, read_settings
from transformer_jax.runs.workdir import METRICS
from transformer_jax.runtime.files import atomic_writer
from transformer_jax.training.optimizer import make_schedule

Records = Sequence[Mapping[str, Any]]
"""Content of metrics.jsonl: objects with `step`, `split` and metrics."""

_SCORES = ("bleu", "exact_match", "f1", "accuracy")
_PANEL_WIDTH, _PANEL_HEIGHT = 6.0, 3.8  # inches
_POSITIONS_SHOWN = 100
_HEAD_COLUMNS = 4
_CELL, _SMALLEST_HEAD, _LARGEST_HEAD, _LABELS = 0.2, 1.2, 6.0, 0.8  # inches
_WEIGHT_TICKS = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 1)


def plot_runs(workdirs: Sequence[Path], output: Path) -> None:
    """Draws the curves of one or several runs into a file.

    Raises:
      UserError: a workdir has no metrics, or the file cannot be written.
    """
    names = [workdir.name for workdir in workdirs]
    labels = names if len(set(names)) == len(names) else list(map(str, workdirs))
    records = map(read_records, workdirs)
    save_figure(draw_curves(dict(zip(labels, records, strict=True))), output)


def plot_config(config: ConfigDict, output: Path) -> None:
    """Draws a config's learning rate and position encodings into a file.

    Raises:
      UserError: the config is invalid, or the file cannot be written.
    """
    settings = read_settings(config)
    try:
        encodings = _encodings(settings)
    except ValueError as error:
        raise UserError(f"config.model: {error}") from error
    schedule = make_schedule(settings.optimizer, settings.model.d_model, settings.train.num_steps)
    save_figure(draw_recipe(schedule, settings.train.num_steps, encodings), output)


def plot_attention(
    attention: Attention, output: Path, kind: str | None = None, layer: int | None = None
) -> None:
    """Draws the attention of the heads of a layer into a file.

    Args:
      attention: of one example.
      output: an SVG file if its name ends in .svg, otherwise a PNG.
      kind: one of `attention.kinds`; None: the last one, which is cross-attention if there is any.
      layer: None: the last one.

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


def draw_curves(runs: Mapping[str, Records]) -> Figure:
    """Loss, score, learning rate and tokens a second over the steps of one or several runs.

    Validation is dashed, with markers. Metrics that no run has recorded have no panel.

    Args:
      runs: label of a run -> its records.
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
                    ax.plot(steps, values, **style, label=drawable(f"{label} {split}"))
        ax.set(title=title, xlabel="step")
        ax.grid(alpha=0.3)
        ax.legend(fontsize="small")
    return figure


def draw_recipe(
    schedule: Callable[[Any], Any], num_steps: int, encodings: np.ndarray | None
) -> Figure:
    """Learning rate of each step, and what positions add to the embeddings.

    Args:
      schedule: number of steps done -> learning rate.
      num_steps: steps in all.
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


def draw_heads(
    weights: Float[np.ndarray, "H T S"], queries: Sequence[str], keys: Sequence[str]
) -> Figure:
    """Heat map of each head: queries from top to bottom, keys from left to right.

    The shade is the square root of the weight, which makes small weights visible.
    """
    heads, T, S = weights.shape
    columns = min(heads, _HEAD_COLUMNS)
    rows = -(-heads // columns)
    width, height = (min(_LARGEST_HEAD, max(_SMALLEST_HEAD, _CELL * count)) for count in (S, T))
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
        ax.set_yticks(range(T), list(map(drawable, queries)) if in_first else [""] * T)
        marks = list(map(drawable, keys)) if in_last else [""] * S
        ax.set_xticks(range(S), marks, rotation=90)
    bar = figure.colorbar(picture, ax=figure.axes, fraction=0.02, ticks=_WEIGHT_TICKS)
    bar.ax.tick_params(labelsize=6)
    return figure


def grid(panels: int, columns: int, height: float = _PANEL_HEIGHT) -> tuple[Figure, list[Axes]]:
    """A figure and its panels, filled row by row.

    Args:
      panels: number of panels.
      columns: most panels in a row.
      height: of a panel, in inches.
    """
    columns = min(panels, columns)
    rows = -(-panels // columns)
    figure = Figure(figsize=(_PANEL_WIDTH * columns, height * rows), layout="constrained", dpi=120)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes[panels:]:
        ax.remove()
    return figure, axes[:panels]


def read_records(workdir: Path) -> Records:
    """Records of a run; raises UserError if there are none."""
    path = workdir / METRICS
    try:
        records = [record for record in map(_parse, read_lines(path)) if record is not None]
    except OSError as error:
        raise UserError(f"{workdir} has no metrics to draw: {path.name}: {error}") from error
    if not records:
        raise UserError(f"{workdir} has no metrics to draw: {path.name} holds no record yet")
    return records


def save_figure(figure: Figure, output: Path) -> None:
    """Writes an SVG if the name ends in .svg, otherwise a PNG; raises UserError if it cannot."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(output) as file:
            figure.savefig(file, format="svg" if output.suffix.lower() == ".svg" else "png")
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error


def drawable(text: str) -> str:
    r"""A user's text for matplotlib, which would read `$` as mathematics.

    Characters that cannot be drawn, such as line feeds, become U+FFFD. A text that begins with "_"
    gets a space before it, without which a legend leaves it out.
    """
    unknown = "\N{REPLACEMENT CHARACTER}"
    shown = "".join(c if c.isprintable() else unknown for c in text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def _series(records: Records, split: str, name: str) -> tuple[list[int], list[float]]:
    found = [r for r in records if r.get("split") == split and r.get(name) is not None]
    return [record["step"] for record in found], [record[name] for record in found]


def _any_has(runs: Mapping[str, Records], split: str, name: str) -> bool:
    return any(_series(records, split, name)[0] for records in runs.values())


def _encodings(settings: Settings) -> np.ndarray | None:
    """Vectors that positions add to embeddings, [L, D]; None if they add nothing."""
    encoding = encoding_class(settings.model)(settings.model)
    positions = jnp.arange(_POSITIONS_SHOWN)[None]
    nothing = jnp.zeros((1, _POSITIONS_SHOWN, settings.model.d_model))
    added, _ = encoding.init_with_output(
        jax.random.key(settings.seed), nothing, positions, method="embed"
    )
    return np.asarray(added[0]) if added.any() else None


def _parse(line: bytes) -> dict[str, Any] | None:
    """A record; None for a line that a kill has torn."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None
