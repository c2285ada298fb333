# SPDX-License-Identifier: Apache-2.0
"""Errors of classifiers and taggers, against scikit-learn and formulas."""

from collections import Counter

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, recall_score

from transformer_jax.scoring import errors
from transformer_jax.scoring.errors import Bin, Decision

RNG = np.random.default_rng(0)
PAIRS = RNG.choice(list("abc"), (300, 2), p=[0.5, 0.3, 0.2])
WORDS = RNG.integers(1, 20, 300)
PROBABILITIES = RNG.uniform(0.3, 1, 300)
DRAWN = [
    Decision("w " * num_words, *pair, probability, num_words)
    for pair, num_words, probability in zip(
        *(column.tolist() for column in (PAIRS, WORDS, PROBABILITIES)), strict=True
    )
]
EXPECTED, PREDICTED = PAIRS.T


def test_decisions_are_read_from_both_tasks():
    classified = {"text": "a dog", "label": "x", "output": "y", "score": 0.75}
    tagged = {"text": "a  dog", "tags": "D N", "output": "D V", "score": 0.5}
    assert errors.decisions([classified, classified | {"pair": "so"}, tagged]) == [
        Decision("a dog", "x", "y", 0.75, 2),
        Decision("a dog\tso", "x", "y", 0.75, 3),
        Decision("a", "D", "D", None, 2),
        Decision("dog", "N", "V", None, 2),
    ]


def test_confusion_counts_each_pair_of_labels():
    decisions = [*DRAWN, Decision("", "a", "never expected", 0.5, 0)]
    labels, counts = errors.confusion(decisions)
    assert labels == ["a", "b", "c", "never expected"]
    pairs = Counter(decision[1:3] for decision in decisions)
    assert counts.tolist() == [[pairs[a, b] for b in labels] for a in labels]


def test_calibration_is_that_of_scikit_learn_and_its_error_is_weighted_by_counts():
    shares, means = calibration_curve(EXPECTED == PREDICTED, PROBABILITIES, n_bins=10)
    bins = errors.calibration(DRAWN)
    np.testing.assert_allclose([one.accuracy for one in bins], shares)
    np.testing.assert_allclose([one.probability for one in bins], means)
    assert sum(one.number for one in bins) == len(DRAWN)
    assert errors.calibration([Decision("", "a", "a", 1.0, 0)]) == [Bin(1.0, 1.0, 1)]
    weighted = errors.calibration_error([Bin(0.5, 0.7, 1), Bin(0.9, 0.8, 3)])
    assert weighted == pytest.approx(0.125)


def test_rates_by_class_are_one_minus_recall():
    rates = errors.rates_by_class(DRAWN)
    assert [rate.number for rate in rates] == sorted((rate.number for rate in rates), reverse=True)
    recall = recall_score(EXPECTED, PREDICTED, average=None, labels=[rate.group for rate in rates])
    np.testing.assert_allclose([1 - rate.share for rate in rates], recall)


def test_intervals_are_those_of_wilson():
    (rate,) = errors.rates_by_class([Decision("", "a", "ab"[i < 3], None, 0) for i in range(10)])
    # (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), with p = 0.3 and z = 1.96
    z, p, n = 1.959964, 0.3, 10
    half = z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    middle, scale = p + z**2 / (2 * n), 1 + z**2 / n
    assert rate[1:4] == pytest.approx((p, (middle - half) / scale, (middle + half) / scale))


def test_rates_by_length_and_frequency_are_in_groups_of_doubling_width():
    rates = errors.rates_by_length(DRAWN)
    assert [rate.group for rate in rates] == ["1", "2–3", "4–7", "8–15", "16–31"]
    held = (WORDS >= 4) & (WORDS <= 7)
    accuracy = accuracy_score(EXPECTED[held], PREDICTED[held])
    assert rates[2].share == pytest.approx(1 - accuracy) and rates[2].number == held.sum()
    texts = [Decision("the dog", "a", "a", None, 1), Decision("cat", "a", "b", None, 1)]
    by_rarest = errors.rates_by_frequency(texts, {"the": 100, "dog": 5})
    assert [(rate.group, rate.share) for rate in by_rarest] == [("0", 1.0), ("4–7", 0.0)]


def test_the_worst_errors_are_frequent_or_sure():
    tags = [Decision("that", "IN", "DT", None, n) for n in (3, 4)]
    tags += [Decision("so", "RB", "IN", None, 3), Decision("so", "RB", "RB", None, 3)]
    worst = [(error.text, error.number) for error in errors.worst_errors(tags)]
    assert worst == [("that", 2), ("so", 1)]
    texts = [Decision(t, "a", "b", p, 1) for t, p in (("x", 0.6), ("y", 0.9))]
    assert [error.text for error in errors.worst_errors(texts)] == ["y", "x"]
