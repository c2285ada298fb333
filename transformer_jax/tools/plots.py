# SPDX-License-Identifier: Apache-2.0
"""Writes the pictures of the verb plot: of runs, of one example's attention, of a config."""

from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.analysis.activations import Attention
from transformer_jax.analysis.pages.attention_page import TITLES
from transformer_jax.errors import UserError
from transformer_jax.nn.positions import encoding_class
from transformer_jax.pictures import draw_curves, draw_heads, draw_recipe, save_figure
from transformer_jax.runs.config import Settings, read_settings
from transformer_jax.runs.workdir import read_metrics
from transformer_jax.training.optimizer import make_schedule

_POSITIONS_SHOWN = 100


def plot_runs(workdirs: Sequence[Path], output: Path) -> None:
    """Draws the curves of one or several runs into a file.

    Raises:
      UserError: a workdir has no metrics, or the file cannot be written.
    """
    names = [workdir.name for workdir in workdirs]
    labels = names if len(set(names)) == len(names) else list(map(str, workdirs))
    records = [[read_metrics(workdir)] for workdir in workdirs]
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
      output: ends in .png, .svg or .pdf.
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
    figure.suptitle(f"{TITLES[kind]}, layer {layer}", fontsize=8)
    save_figure(figure, output)


def _encodings(settings: Settings) -> np.ndarray | None:
    """Vectors that positions add to embeddings, [L, D]; None if they add nothing."""
    encoding = encoding_class(settings.model)(settings.model)
    positions = jnp.arange(_POSITIONS_SHOWN)[None]
    nothing = jnp.zeros((1, _POSITIONS_SHOWN, settings.model.d_model))
    added, _ = encoding.init_with_output(
        jax.random.key(settings.seed), nothing, positions, method="embed"
    )
    return np.asarray(added[0]) if added.any() else None
