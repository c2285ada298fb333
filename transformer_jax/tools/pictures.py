"""Pictures of workdirs and configs, as files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from transformer_jax.errors import UserError
from transformer_jax.logs.records import read_lines
from transformer_jax.nn.positions import encoding_class
from transformer_jax.runs.config import Settings, read_settings
from transformer_jax.runs.workdir import METRICS
from transformer_jax.tools.plots import Records, draw_curves, draw_recipe
from transformer_jax.training.optimizer import make_schedule

_POSITIONS_SHOWN = 100


def plot_runs(workdirs: Sequence[Path], output: Path) -> None:
    """Draws the curves of one or several runs into a PNG.

    Raises:
      UserError: a workdir has no metrics, or the file cannot be written.
    """
    names = [workdir.name for workdir in workdirs]
    labels = names if len(set(names)) == len(names) else list(map(str, workdirs))
    records = map(read_records, workdirs)
    save_figure(draw_curves(dict(zip(labels, records, strict=True))), output)


def plot_config(config: ConfigDict, output: Path) -> None:
    """Draws a config's learning rate and its position encodings into a PNG.

    Raises:
      UserError: the config or the file cannot be used.
    """
    settings = read_settings(config)
    try:
        encodings = _encodings(settings)
    except ValueError as error:
        raise UserError(f"config.model: {error}") from error
    schedule = make_schedule(settings.optimizer, settings.model.d_model, settings.train.num_steps)
    save_figure(draw_recipe(schedule, settings.train.num_steps, encodings), output)


def _encodings(settings: Settings) -> np.ndarray | None:
    """What the positions add to embeddings, [L, D]; None where they add nothing."""
    encoding = encoding_class(settings.model)(settings.model)
    positions = jnp.arange(_POSITIONS_SHOWN)[None]
    nothing = jnp.zeros((1, _POSITIONS_SHOWN, settings.model.d_model))
    added, _ = encoding.init_with_output(
        jax.random.key(settings.seed), nothing, positions, method="embed"
    )
    return np.asarray(added[0]) if added.any() else None


def read_records(workdir: Path) -> Records:
    """What a run's metrics.jsonl holds; UserError where there is nothing."""
    path = workdir / METRICS
    try:
        records = [record for record in map(_parse, read_lines(path)) if record is not None]
    except OSError as error:
        raise UserError(f"{workdir} has no metrics to draw: {path.name}: {error}") from error
    if not records:
        raise UserError(f"{workdir} has no metrics to draw: {path.name} holds no record yet")
    return records


def _parse(line: bytes) -> dict[str, Any] | None:
    """A record; None for a line that a kill tore."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def save_figure(figure: Figure, output: Path) -> None:
    """Writes an SVG where the name ends so, else a PNG; UserError where that cannot be."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, format="svg" if output.suffix.lower() == ".svg" else "png")
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error
