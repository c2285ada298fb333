# SPDX-License-Identifier: Apache-2.0
"""Errors of a classifier or tagger: decisions, confusion, calibration, and error rates of groups.

Reads the records of predictions/*.jsonl: an example with its "output" and "score".
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Decision(NamedTuple):
    """A label that a model chose for a text, or a tag for a word.

    Attributes:
      text: the text, or the word.
      expected, predicted: labels.
      probability: of the predicted label; None for tags.
      words: number of words of the text, or of the word's sentence.
    """

    text: str
    expected: str
    predicted: str
    probability: float | None
    words: int

    @property
    def is_wrong(self) -> bool:
        """Returns True if the labels differ."""
        return self.expected != self.predicted


class Error(NamedTuple):
    """A wrong decision, and the number of times that it occurs."""

    text: str
    expected: str
    predicted: str
    probability: float | None
    number: int


class Rate(NamedTuple):
    """Share of errors in a group of decisions, with its 95% interval (Wilson 1927)."""

    group: str
    share: float
    low: float
    high: float
    number: int


class Bin(NamedTuple):
    """Decisions of similar probability: their mean probability, and the share that is right."""

    probability: float
    accuracy: float
    number: int


def decisions(records: Iterable[Mapping[str, Any]]) -> list[Decision]:
    """Decisions in the records of a classifier, one each, or of a tagger, one per word.

    Raises:
      ValueError: the records are of another task.
    """
    chosen: list[Decision] = []
    for record in records:
        match record:
            case {"text": str(text), "label": str(label), "output": str(output)}:
                if "pair" in record:
                    text = "\t".join((text, record["pair"]))
                words = len(text.split())
                chosen.append(Decision(text, label, output, record.get("score"), words))
            case {"text": str(text), "tags": str(tags), "output": str(output)}:
                sides = [list(filter(None, side.split(" "))) for side in (text, tags, output)]
                words = len(sides[0])
                chosen += [
                    Decision(word, tag, predicted, None, words)
                    for word, tag, predicted in zip(*sides, strict=True)
                ]
            case _:
                raise ValueError("they are of a task without labels or tags")
    return chosen


def confusion(found: Sequence[Decision]) -> tuple[list[str], np.ndarray]:
    """Labels, most frequent first, and the counts [expected, predicted], by scikit-learn."""
    # Imported here because it takes seconds, and few runs need it.
    from sklearn.metrics import confusion_matrix

    expected = [decision.expected for decision in found]
    predicted = [decision.predicted for decision in found]
    counts = Counter(expected)
    for label in predicted:
        counts.setdefault(label, 0)  # labels that are only predicted come last
    labels = [label for label, _ in counts.most_common()]
    return labels, confusion_matrix(expected, predicted, labels=labels)


def worst_errors(found: Iterable[Decision]) -> list[Error]:
    """The most frequent errors first, and of equally frequent ones those that the model was surest
    of."""
    counts = Counter(decision[:4] for decision in found if decision.is_wrong)
    errors = [Error(*fields, count) for fields, count in counts.items()]
    return sorted(errors, key=lambda error: (-error.number, -(error.probability or 0.0)))


def calibration(found: Sequence[Decision], bins: int = 10) -> list[Bin]:
    """Probability and accuracy of the decisions in bins of equal width that are not empty.

    Raises:
      ValueError: a decision has no probability.
    """
    if any(decision.probability is None for decision in found):
        raise ValueError("tags have no probabilities of their own")
    probabilities = np.array([decision.probability for decision in found])
    right = np.array([not decision.is_wrong for decision in found])
    bin_of = np.minimum((probabilities * bins).astype(int), bins - 1)  # 1 is in the last bin
    masks = [bin_of == i for i in range(bins)]
    return [
        Bin(float(probabilities[mask].mean()), float(right[mask].mean()), int(mask.sum()))
        for mask in masks
        if mask.any()
    ]


def calibration_error(found: Sequence[Bin]) -> float:
    """Expected calibration error (Naeini et al. 2015): mean distance of probability and accuracy,
    weighted by the number of decisions."""
    total = sum(group.number for group in found)
    return sum(group.number * abs(group.probability - group.accuracy) for group in found) / total


def rates_by_class(found: Iterable[Decision]) -> list[Rate]:
    """Error rates of each expected label, most frequent first."""
    rates = _rates((decision.expected, decision) for decision in found)
    return sorted(rates, key=lambda rate: -rate.number)


def rates_by_length(found: Iterable[Decision]) -> list[Rate]:
    """Error rates by the number of words of the text or sentence, in groups of doubling width."""
    return _rates_by_size((decision.words, decision) for decision in found)


def rates_by_frequency(found: Iterable[Decision], counts: Mapping[str, int]) -> list[Rate]:
    """Error rates by how often the training data has the word; of a text, its rarest word.

    Args:
      counts: word -> number of times that it occurs in the training data.
    """
    return _rates_by_size(
        (min((counts.get(word, 0) for word in decision.text.split()), default=0), decision)
        for decision in found
    )


def _rates_by_size(sized: Iterable[tuple[int, Decision]]) -> list[Rate]:
    """Rates in groups 0, 1, 2-3, 4-7 and so on."""
    rates = _rates((size.bit_length(), decision) for size, decision in sized)
    return [rate._replace(group=_range_of_bits(int(rate.group))) for rate in rates]


def _range_of_bits(bits: int) -> str:
    """Range of the numbers with `bits` bits, such as 4 to 7 for 3."""
    low = 2**bits // 2
    high = 2**bits - 1
    return str(low) if low == high else f"{low}\N{EN DASH}{high}"


def _rates(grouped: Iterable[tuple[Any, Decision]]) -> list[Rate]:
    """Rate of each group, in order of the groups."""
    from scipy.stats import binomtest

    total: Counter[Any] = Counter()
    wrong: Counter[Any] = Counter()
    for group, decision in grouped:
        total[group] += 1
        wrong[group] += decision.is_wrong
    rates = []
    for group in sorted(total):
        interval = binomtest(wrong[group], total[group]).proportion_ci(method="wilson")
        share = wrong[group] / total[group]
        rates.append(Rate(str(group), share, interval.low, interval.high, total[group]))
    return rates
