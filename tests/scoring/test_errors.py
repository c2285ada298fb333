# SPDX-License-Identifier: Apache-2.0
"""Errors of classifiers and taggers, against scikit-learn and formulas."""

from collections import Counter

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, recall_score

from transformer_jax.scoring.errors import (
    Bin,
    Decision,
    calibration,
    calibration_error,
    confusion,
    decisions,
    rates_by_class,
    rates_by_frequency,
    rates_by_length,
    worst_errors,
)


def drawn(count=300):
    rng = np.random.default_rng(0)
    labels = rng.choice(list("abc"), (count, 2), p=[0.5, 0.3, 0.2])
    words = rng.integers(1, 20, count)
    return [
        Decision("w " * n, *map(str, pair), float(p), int(n))
        for pair, p, n in zip(labels, rng.uniform(0.3, 1, count), words, strict=True)
    ]


def test_decisions_are_read_from_both_tasks():
    classified = {"text": "a dog", "label": "x", "output": "y", "score": 0.75}
    tagged = {"text": "a  dog", "tags": "D N", "output": "D V", "score": 0.5}
    assert decisions([classified, classified | {"pair": "so"}, tagged]) == [
        Decision("a dog", "x", "y", 0.75, 2),
        Decision("a dog\tso", "x", "y", 0.75, 3),
        Decision("a", "D", "D", None, 2),
        Decision("dog", "N", "V", None, 2),
    ]


def test_confusion_counts_each_pair_of_labels():
    drawn_decisions = [*drawn(), Decision("", "a", "never expected", 0.5, 0)]
    labels, counts = confusion(drawn_decisions)
    assert labels == ["a", "b", "c", "never expected"]
    pairs = Counter(decision[1:3] for decision in drawn_decisions)
    assert counts.tolist() == [[pairs[a, b] for b in labels] for a in labels]


def test_calibration_is_that_of_scikit_learn():
    found = drawn()
    right = [not one.is_wrong for one in found]
    shares, means = calibration_curve(right, [one.probability for one in found], n_bins=10)
    bins = calibration(found)
    np.testing.assert_allclose([one.accuracy for one in bins], shares)
    np.testing.assert_allclose([one.probability for one in bins], means)
    assert sum(one.number for one in bins) == len(found)
    assert calibration([Decision("", "a", "a", 1.0, 0)]) == [Bin(1.0, 1.0, 1)]


def test_calibration_error_is_weighted_by_counts():
    assert calibration_error([Bin(0.5, 0.7, 1), Bin(0.9, 0.8, 3)]) == pytest.approx(0.125)


def test_rates_by_class_are_one_minus_recall():
    found = drawn()
    expected, predicted = [one.expected for one in found], [one.predicted for one in found]
    rates = rates_by_class(found)
    assert [rate.number for rate in rates] == sorted((rate.number for rate in rates), reverse=True)
    recall = recall_score(expected, predicted, average=None, labels=[rate.group for rate in rates])
    np.testing.assert_allclose([1 - rate.share for rate in rates], recall)


def test_intervals_are_those_of_wilson():
    (rate,) = rates_by_class([Decision("", "a", "ab"[i < 3], None, 0) for i in range(10)])
    # (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), with p = 0.3 and z = 1.96
    z, p, n = 1.959964, 0.3, 10
    half = z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    middle, scale = p + z**2 / (2 * n), 1 + z**2 / n
    assert rate[1:4] == pytest.approx((p, (middle - half) / scale, (middle + half) / scale))


def test_rates_by_length_and_frequency_are_in_groups_of_doubling_width():
    found = drawn()
    rates = rates_by_length(found)
    assert [rate.group for rate in rates] == ["1", "2–3", "4–7", "8–15", "16–31"]
    held = [one for one in found if 4 <= one.words <= 7]
    accuracy = accuracy_score([one.expected for one in held], [one.predicted for one in held])
    assert rates[2].share == pytest.approx(1 - accuracy) and rates[2].number == len(held)
    texts = [
        Decision(text, "a", label, None, 1) for text, label in (("the dog", "a"), ("cat", "b"))
    ]
    by_rarest = rates_by_frequency(texts, {"the": 100, "dog": 5})
    assert [(rate.group, rate.share) for rate in by_rarest] == [("0", 1.0), ("4–7", 0.0)]


def test_the_worst_errors_are_frequent_or_sure():
    tags = [Decision("that", "IN", "DT", None, n) for n in (3, 4)]
    tags += [Decision("so", "RB", "IN", None, 3), Decision("so", "RB", "RB", None, 3)]
    assert [(one.text, one.number) for one in worst_errors(tags)] == [("that", 2), ("so", 1)]
    texts = [Decision(t, "a", "b", p, 1) for t, p in (("x", 0.6), ("y", 0.9))]
    assert [one.text for one in worst_errors(texts)] == ["y", "x"]
