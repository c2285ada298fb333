# SPDX-License-Identifier: Apache-2.0
"""Pictures of the verb plot: of runs, of one example's attention, of a config."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.errors import UserError, user_errors
from transformer_jax.lab import pictures
from transformer_jax.lab.analysis.activations import Attention
from transformer_jax.lab.analysis.attention_page import TITLES
from transformer_jax.lab.pictures.style import Picture
from transformer_jax.logs.records import last_recorded_step
from transformer_jax.nn.positions import encoding_class
from transformer_jax.runs.config import load_json
from transformer_jax.runs.evaluate import selecting_metrics
from transformer_jax.runs.outside import open_data
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.workdir import (
    CONFIG,
    METRICS,
    read_metrics,
    read_predictions,
    seed_workdirs,
)
from transformer_jax.scoring import errors
from transformer_jax.training.optimizer import make_schedule

_POSITIONS_SHOWN = 100

logger = logging.getLogger(__name__)


def plot_runs(workdirs: Sequence[Path]) -> Picture:
    """The curves of one or several runs; UserError if a workdir has no metrics.

    A workdir of `train --seeds`, or of a row of a sweep, is one curve with a band over its seeds.
    """
    names = [workdir.name for workdir in workdirs]
    labels = names if len(set(names)) == len(names) else list(map(str, workdirs))
    records = [[read_metrics(seed) for seed in seed_workdirs(workdir)] for workdir in workdirs]
    selected_by = selecting_metrics([seed_workdirs(workdir)[0] for workdir in workdirs])
    return pictures.draw_curves(dict(zip(labels, records, strict=True)), selected_by)


def plot_config(settings: Settings) -> Picture:
    """A config's learning rate and position encodings; UserError if it is invalid."""
    with user_errors("config.model"):
        encodings = _encodings(settings)
    schedule = make_schedule(settings.optimizer, settings.model.d_model, settings.train.num_steps)
    return pictures.draw_recipe(schedule, settings.train.num_steps, encodings)


def plot_attention(
    attention: Attention, kind: str | None = None, layer: int | None = None
) -> Picture:
    """The attention of the heads of a layer.

    Args:
      kind: one of `attention.kinds`; None: the last one, which is cross-attention if there is any.
      layer: None: the last one.

    Raises:
      UserError: the model has no such kind or layer.
    """
    kind = kind or attention.kinds[-1]
    if kind not in attention.kinds:
        kinds = ", ".join(attention.kinds)
        raise UserError(f"--kind: this model has no {kind} attention; it has {kinds}")
    layers = attention.layers(kind)  # those that have weights
    layer = layers[-1] if layer is None else layer
    if layer not in layers:
        is_whole = layers == [*range(len(layers))]
        numbers = f"0 to {layers[-1]}" if is_whole else ", ".join(map(str, layers))
        raise UserError(f"--layer: {layer} is none of the layers {numbers}")
    queries, keys = (attention.tokens[stack] for stack in attention.stacks(kind))
    weights = attention.weights(kind)[layers.index(layer)]
    figure = pictures.draw_heads(weights, queries, keys)
    figure.suptitle(f"{TITLES[kind]}, layer {layer}", fontsize=8)
    return figure


def plot_errors(
    workdir: Path, kind: str, split: str, overrides: Mapping[str, Any] | None = None
) -> Picture:
    """The errors of a classifier or tagger on a split that `evaluate` has scored.

    Args:
      kind: "confusion" (matrix), "calibration" (curve), "worst" (list of errors), or error rates by
        "class", by "length", or by "frequency" of the words in the training data.
      overrides: places of the training data, {"data.field": value}.

    Raises:
      UserError: there are no such predictions, the task has no labels, or tags have no calibration.
    """
    predictions = read_predictions(workdir, split)
    trained = last_recorded_step(workdir / METRICS)
    if predictions.step < trained:
        message = "the outputs of %s are of step %d of %d; evaluate --split=%s scores the latest"
        logger.warning(message, split, predictions.step, trained, split)
    try:
        decided = errors.decisions(predictions.records)
        match kind:
            case "confusion":
                return pictures.draw_confusion(decided)
            case "calibration":
                return pictures.draw_calibration(errors.calibration(decided))
            case "worst":
                return pictures.draw_worst(decided)
            case "class":
                return pictures.draw_rates(errors.rates_by_class(decided), "expected label")
            case "length":
                return pictures.draw_rates(errors.rates_by_length(decided), "words of the text")
            case _:
                examples = open_data(load_json(workdir / CONFIG, overrides), "train")
                words = Counter(word for example in examples for word in example["text"].split())
                rates = errors.rates_by_frequency(decided, words)
                return pictures.draw_rates(rates, "occurrences in training")
    except ValueError as error:
        raise UserError(f"--errors={kind}: {workdir}: predictions of {split}: {error}") from error


def _encodings(settings: Settings) -> np.ndarray | None:
    """Vectors that positions add to embeddings, [L, D]; None if they add nothing."""
    cls = encoding_class(settings.model)
    encoding = cls(settings.model)
    # Positions beyond those that are learned would repeat the last vector.
    shown = int(min(_POSITIONS_SHOWN, cls.num_positions(settings.model)))
    positions = jnp.arange(shown)[None]
    nothing = jnp.zeros((1, shown, settings.model.d_model))
    key = jax.random.key(settings.seed)
    added, _ = encoding.init_with_output(key, nothing, positions, method="embed")
    return np.asarray(added[0]) if added.any() else None
