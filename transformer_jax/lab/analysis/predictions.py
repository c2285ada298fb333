# SPDX-License-Identifier: Apache-2.0
"""Predictions of a model for one example: next tokens, masked tokens, or labels."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from transformer_jax.inference.model_inputs import ModelInputs
from transformer_jax.tasks.interface import Prediction
from transformer_jax.tokenization import Labels, Tokenizer

NUM_TOKENS = 5
"""Number of tokens kept for each position of a model that predicts tokens; of labels, all are."""


class Predicted(NamedTuple):
    """Prediction at a position, or for the whole text.

    Attributes:
      position: position in the last stack; None: the whole text.
      outputs: likeliest tokens or labels with their probabilities, best first.
      gold: the right label, if it is given.
    """

    position: int | None
    outputs: tuple[Prediction, ...]
    gold: str | None = None


class Predictions(NamedTuple):
    """Predictions for an example.

    Attributes:
      what: "next token", "masked token" or "label".
      each: the predictions, by position.
    """

    what: str
    each: tuple[Predicted, ...]


def find_predictions(
    reading: ModelInputs, logits: np.ndarray, outputs: Tokenizer | Labels
) -> Predictions:
    """Predictions for an example, from the model's output.

    Args:
      logits: of the last stack [T, V], or of a text classifier [1, C].
      outputs: vocabulary or labels of the predictions.
    """
    kind, positions = _read_positions(reading, outputs)
    gold: Sequence[str | None] = reading.gold or [None] * len(positions)
    probabilities = np.asarray(jax.nn.softmax(logits))
    predictions = (
        Predicted(position, _likeliest(probabilities[position or 0], outputs), label)
        for position, label in zip(positions, gold, strict=True)
    )
    return Predictions(kind, tuple(predictions))


def _read_positions(
    reading: ModelInputs, outputs: Tokenizer | Labels
) -> tuple[str, Sequence[int | None]]:
    """Returns the kind of prediction, and the positions at which the task reads the output."""
    tokens = reading.tokens[reading.last_stack]
    if isinstance(outputs, Labels):
        return "label", [None] if reading.labeled is None else reading.labeled
    if reading.last_stack == "decoder":
        return "next token", range(len(tokens))
    mask = outputs.specials.mask
    return "masked token", [i for i, token in enumerate(tokens) if token == mask]


def _likeliest(probabilities: np.ndarray, outputs: Tokenizer | Labels) -> tuple[Prediction, ...]:
    best = np.argsort(-probabilities, kind="stable")  # of equal ones, the lower id first
    if isinstance(outputs, Labels):
        names = [outputs.names[i] for i in best]
    else:
        best = best[:NUM_TOKENS]
        names = outputs.pieces(best.tolist())
    return tuple(map(Prediction, names, probabilities[best].tolist()))
