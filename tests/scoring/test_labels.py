# SPDX-License-Identifier: Apache-2.0
"""Metrics of labels and choices against values computed by hand."""

import warnings

import pytest

from transformer_jax.scoring.labels import classification_scores, multiple_choice_accuracy


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


YES = "entailment"
NO = "not_entailment"


@pytest.mark.parametrize(
    ("predicted", "expected", "labels", "scores"),
    [
        # "1" has 2 true positives, 1 false, 1 missed; "0" has 1 right.
        ("11100", "11001", "01", {"accuracy": 3 / 5, "f1": 4 / 6, "matthews": (2 - 1) / 6}),
        # F1 is that of the last label in order, whose precision is 1/1 and recall 1/2.
        ("YN", "YY", "NY", {"f1": 2 / 3}),
        # Of RTE it is that of entailment, whose precision is 1 and recall 2/3.
        ([YES, YES, NO], [YES, YES, YES], [YES, NO], {"f1": 4 / 5}),
        # Of more labels it is the mean: "a" 2/3, "b" 2/3, "c" 1, if it occurs.
        ("abbc", "aabc", "abc", {"accuracy": 3 / 4, "f1": (2 / 3 + 2 / 3 + 1) / 3}),
        ("abb", "aab", "abc", {"f1": (2 / 3 + 2 / 3) / 2}),
        ("aab", "aab", "abc", {"f1": 1}),
        ("abc", "aab", "abc", {"f1": (2 / 3 + 0 + 0) / 3}),
        ("ab", "ab", "ab", {"accuracy": 1, "f1": 1, "matthews": 1}),
        ("ab", "ba", "ab", {"accuracy": 0, "f1": 0, "matthews": -1}),
        # With a single label there is no warning.
        ("bb", "bb", "ab", {"accuracy": 1, "f1": 1, "matthews": 0}),
        ("aa", "ab", "ab", {"accuracy": 1 / 2, "f1": 0, "matthews": 0}),
        ("ab", "aa", "ab", {"accuracy": 1 / 2, "f1": 0, "matthews": 0}),
        ("a", "b", "ab", {"accuracy": 0, "f1": 0, "matthews": 0}),
    ],
)
def test_scores_of_labels(predicted, expected, labels, scores):
    found = classification_scores(list(predicted), list(expected), labels)
    assert {name: found[name] for name in scores} == pytest.approx(scores)
    assert {type(score) for score in found.values()} == {float}


def test_accuracy_of_choices_and_accuracy_per_character():
    log_probs = [[-4.0, -6.0], [-3.0, -2.0], [-5.0, -4.0, -9.0]]
    choices = [["ab", "abcdef"], ["a", "b"], ["abcde", "ab", "c"]]
    found = multiple_choice_accuracy(log_probs, choices, [1, 1, 0])
    # Raw: 0, 1, 1. By length: -2 and -1; -3 and -2; -1, -2 and -9.
    assert found == {"accuracy": pytest.approx(1 / 3), "accuracy_by_length": 1.0}
