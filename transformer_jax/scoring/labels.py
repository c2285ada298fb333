"""How well labels are found: accuracy, F1 and Matthews correlation, by scikit-learn."""

from collections.abc import Sequence

import numpy as np


def classification_scores(
    predicted: Sequence[str], expected: Sequence[str], labels: Sequence[str]
) -> dict[str, float]:
    """Scores of one label an example, shares of 1 like every accuracy here.

    Args:
      predicted, expected: the labels of each example.
      labels: all that there are, whether they occur or not.

    Returns:
      "accuracy": share of the labels that are right. "f1": harmonic mean of precision and recall;
      of two labels that of the positive one, else the unweighted mean over all, 0 for one that does
      not occur. Positive is x of x and not_x, as entailment in GLUE's RTE and QNLI, and otherwise
      the label that sorts last, as 1 of 0 and 1. "matthews": correlation of predicted and expected
      (Matthews 1975; for more than two labels Gorodkin 2004), from -1 to 1; 0 where either has one
      label only.

    Raises:
      ValueError: there are none, or not as many of one as of the other.
    """
    # Takes seconds to import, and few runs are scored by it.
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    if len(predicted) != len(expected):
        raise ValueError(f"{len(predicted)} labels cannot be scored against {len(expected)}")
    if not expected:
        raise ValueError("there are no labels to score")
    predicted, expected = list(predicted), list(expected)
    scored = [_positive(labels)] if len(labels) == 2 else list(labels)
    f1 = f1_score(expected, predicted, labels=scored, average="macro", zero_division=0.0)
    occurring = {*predicted, *expected}
    matthews = matthews_corrcoef(expected, predicted) if len(occurring) > 1 else 0.0  # would warn
    return {
        "accuracy": float(accuracy_score(expected, predicted)),
        "f1": float(f1),
        "matthews": float(matthews),
    }


def _positive(labels: Sequence[str]) -> str:
    return next((label for label in labels if f"not_{label}" in labels), max(labels))


# FOLDED scoring.multiple_choice: How often the likeliest of several continuations is the right
# one.


def multiple_choice_accuracy(
    log_probs: Sequence[Sequence[float]], choices: Sequence[Sequence[str]], answers: Sequence[int]
) -> dict[str, float]:
    """Accuracy of the likeliest choice, and of the likeliest for its length (Gao et al. 2021).

    Args:
      log_probs: of the choices of each example, in nats.
      choices: their texts.
      answers: the place of the right one of each example.

    Returns:
      "accuracy", and "accuracy_by_length", by log-probability divided by characters.

    Raises:
      ValueError: there are none.
    """
    if not answers:
        raise ValueError("no examples to score")
    raw, by_length = 0, 0
    for of_one, texts, answer in zip(log_probs, choices, answers, strict=True):
        lengths = [max(len(text), 1) for text in texts]
        raw += int(np.argmax(of_one)) == answer
        by_length += int(np.argmax(np.divide(of_one, lengths))) == answer
    return {"accuracy": raw / len(answers), "accuracy_by_length": by_length / len(answers)}
