"""How often the likeliest of several continuations is the right one."""

from collections.abc import Sequence

import numpy as np


def multiple_choice(
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
