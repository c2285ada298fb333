# SPDX-License-Identifier: Apache-2.0
"""Metrics of labels and choices: accuracy, F1 and Matthews correlation."""

from collections.abc import Sequence

import numpy as np

from transformer_jax.scoring.text import require_pairs


def classification_scores(
    predicted: Sequence[str], expected: Sequence[str], labels: Sequence[str]
) -> dict[str, float]:
    """Metrics of one label per example, computed by scikit-learn.

    Args:
      labels: all labels of the task, whether they occur or not.

    Returns:
      "accuracy": share of labels that are right, 0 to 1. "f1": harmonic mean of precision and
      recall, 0 to 1; of a task with two labels that of the positive one, otherwise the unweighted
      mean over the labels that are expected or predicted. The positive label is x of x and not_x,
      as entailment in GLUE's RTE and QNLI, and otherwise the one that sorts last, as 1 of 0 and 1.
      "matthews": correlation of predicted and expected labels, -1 to 1 (Matthews 1975; for more
      than two labels Gorodkin 2004); 0 if either has only one label.

    Raises:
      ValueError: as of `require_pairs`.
    """
    # Imported here because it takes seconds, and few runs need it.
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    require_pairs(predicted, expected)
    predicted = list(predicted)
    expected = list(expected)
    scored = [_positive(labels)] if len(labels) == 2 else None
    f1 = f1_score(expected, predicted, labels=scored, average="macro", zero_division=0.0)
    occurring = {*predicted, *expected}
    matthews = matthews_corrcoef(expected, predicted) if len(occurring) > 1 else 0.0  # it warns
    return {
        "accuracy": float(accuracy_score(expected, predicted)),
        "f1": float(f1),
        "matthews": float(matthews),
    }


def _positive(labels: Sequence[str]) -> str:
    """The positive one of two labels, by the rule of `classification_scores`."""
    for label in labels:
        if f"not_{label}" in labels:
            return label
    return max(labels)


def multiple_choice_accuracy(
    log_probs: Sequence[Sequence[float]], choices: Sequence[Sequence[str]], answers: Sequence[int]
) -> dict[str, float]:
    """Accuracy of the likeliest choice, and of the likeliest per character (Gao et al. 2021).

    Args:
      log_probs: log-probability of each choice of each example, in nats.
      answers: index of the right choice of each example.

    Returns:
      "accuracy", and "accuracy_by_length": log-probabilities divided by the number of characters.

    Raises:
      ValueError: as of `require_pairs`.
    """
    require_pairs(log_probs, answers)
    raw = 0
    by_length = 0
    for example, texts, answer in zip(log_probs, choices, answers, strict=True):
        lengths = [max(len(text), 1) for text in texts]
        raw += int(np.argmax(example)) == answer
        by_length += int(np.argmax(np.divide(example, lengths))) == answer
    return {"accuracy": raw / len(answers), "accuracy_by_length": by_length / len(answers)}
