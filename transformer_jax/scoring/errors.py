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
    """A wrong decision, and how often it occurs."""

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
    """Decisions of similar probability: their mean probability, the share that is right, and how
    many they are."""

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


def confusion(decided: Sequence[Decision]) -> tuple[list[str], np.ndarray]:
    """Labels, most frequent first, and the counts [expected, predicted], by scikit-learn."""
    # Imported here because it takes seconds, and few runs need it.
    from sklearn.metrics import confusion_matrix

    expected = [decision.expected for decision in decided]
    predicted = [decision.predicted for decision in decided]
    by_frequency = [label for label, _ in Counter(expected).most_common()]
    labels = list(dict.fromkeys([*by_frequency, *predicted]))  # only predicted ones come last
    return labels, confusion_matrix(expected, predicted, labels=labels)


def worst_errors(decided: Iterable[Decision]) -> list[Error]:
    """The most frequent errors first, and of equally frequent ones those that the model was surest
    of."""
    counts = Counter(decision[:4] for decision in decided if decision.is_wrong)
    errors = [Error(*fields, count) for fields, count in counts.items()]
    return sorted(errors, key=lambda error: (-error.number, -(error.probability or 0.0)))


def calibration(decided: Sequence[Decision], bins: int = 10) -> list[Bin]:
    """Probability and accuracy of the decisions in bins of equal width that are not empty.

    Raises:
      ValueError: a decision has no probability.
    """
    if any(decision.probability is None for decision in decided):
        raise ValueError("tags have no probabilities of their own")
    probabilities = np.array([decision.probability for decision in decided])
    right = np.array([not decision.is_wrong for decision in decided])
    bin_of = np.minimum((probabilities * bins).astype(int), bins - 1)  # 1 is in the last bin
    return [
        Bin(float(probabilities[mask].mean()), float(right[mask].mean()), int(mask.sum()))
        for mask in (bin_of == i for i in np.unique(bin_of))
    ]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Expected calibration error (Naeini et al. 2015): mean distance of probability and accuracy,
    weighted by the number of decisions."""
    gaps = [abs(group.probability - group.accuracy) for group in bins]
    return float(np.average(gaps, weights=[group.number for group in bins]))


def rates_by_class(decided: Iterable[Decision]) -> list[Rate]:
    """Error rates of each expected label, most frequent first."""
    rates = _rates((decision.expected, decision) for decision in decided)
    return sorted(rates, key=lambda rate: -rate.number)


def rates_by_length(decided: Iterable[Decision]) -> list[Rate]:
    """Error rates by the number of words of the text or sentence, in groups of doubling width."""
    return _rates_by_size((decision.words, decision) for decision in decided)


def rates_by_frequency(decided: Iterable[Decision], counts: Mapping[str, int]) -> list[Rate]:
    """Error rates by how often the training data has the word; of a text, its rarest word.

    Args:
      counts: word -> number of times that it occurs in the training data.
    """
    return _rates_by_size(
        (min((counts.get(word, 0) for word in decision.text.split()), default=0), decision)
        for decision in decided
    )


def _rates_by_size(sized: Iterable[tuple[int, Decision]]) -> list[Rate]:
    """Rates in groups 0, 1, 2-3, 4-7 and so on."""
    rates = []
    for rate in _rates((size.bit_length(), decision) for size, decision in sized):
        low = 2 ** int(rate.group) // 2
        high = 2 ** int(rate.group) - 1
        group = str(low) if low == high else f"{low}\N{EN DASH}{high}"
        rates.append(rate._replace(group=group))
    return rates


def _rates(grouped: Iterable[tuple[Any, Decision]]) -> list[Rate]:
    """Rate of each group, in order of the groups."""
    from scipy.stats import binomtest

    errors: dict[Any, list[bool]] = {}
    for group, decision in grouped:
        errors.setdefault(group, []).append(decision.is_wrong)
    rates = []
    for group, is_wrong in sorted(errors.items()):
        test = binomtest(sum(is_wrong), len(is_wrong))
        low, high = test.proportion_ci(method="wilson")
        rates.append(Rate(str(group), float(test.statistic), low, high, len(is_wrong)))
    return rates
