# SPDX-License-Identifier: Apache-2.0
"""Metrics of labels and choices against values computed by hand."""

import math
import warnings

import pytest

from transformer_jax.scoring.labels import classification_scores, multiple_choice_accuracy


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_two_labels():
    """Label "1" has 2 true positives, 1 false, 1 missed; "0" has 1 right. F1 = 4/6; MCC = 1/6."""
    scores = classification_scores(["1", "1", "1", "0", "0"], ["1", "1", "0", "0", "1"], ["0", "1"])
    assert scores == {
        "accuracy": pytest.approx(0.6),
        "f1": pytest.approx(4 / 6),
        "matthews": pytest.approx((2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2)),
    }


def test_f1_of_two_labels_is_that_of_the_last_in_order():
    """Label "yes" has precision 1/1 and recall 1/2."""
    scores = classification_scores(["yes", "no", "no"], ["yes", "yes", "no"], ["no", "yes"])
    assert scores["f1"] == pytest.approx(2 / 3)


def test_the_positive_label_of_rte_is_entailment():
    """Precision of "entailment" is 1/2, its recall 1; F1 of "not_entailment" would be 2/3."""
    labels = ["entailment", "not_entailment"]
    yes, no = labels
    scores = classification_scores([yes, yes, no], [yes, no, no], labels)
    assert scores["f1"] == pytest.approx(2 / 3)
    scores = classification_scores([yes, yes, no, yes], [yes, no, no, no], labels)
    assert scores["f1"] == pytest.approx(2 * (1 / 3) / (1 / 3 + 1))


def test_f1_of_more_labels_is_their_mean():
    """F1: "a" 2/3, "b" 2/3, "c" 1."""
    scores = classification_scores(["a", "b", "b", "c"], ["a", "a", "b", "c"], "abc")
    assert scores["accuracy"] == pytest.approx(0.75)
    assert scores["f1"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_a_label_that_does_not_occur_counts_in_the_mean():
    scores = classification_scores(["a", "b", "b"], ["a", "a", "b"], "abc")
    assert scores["f1"] == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)


def test_all_right_and_all_wrong():
    assert set(classification_scores(["a", "b"], ["a", "b"], "ab").values()) == {1.0}
    wrong = classification_scores(["a", "b"], ["b", "a"], "ab")
    assert wrong == {"accuracy": 0, "f1": 0, "matthews": -1}


@pytest.mark.parametrize(
    ("predicted", "expected", "scores"),
    [
        (["b", "b"], ["b", "b"], (1, 1, 0)),
        (["a", "a"], ["a", "b"], (0.5, 0, 0)),
        (["a", "b"], ["a", "a"], (0.5, 0, 0)),
        (["a"], ["b"], (0, 0, 0)),
    ],
)
def test_a_single_label_is_scored_without_a_warning(predicted, expected, scores):
    assert tuple(classification_scores(predicted, expected, "ab").values()) == scores


def test_scores_are_python_floats():
    assert {type(score) for score in classification_scores(["a"], ["a"], "a").values()} == {float}


def test_accuracy_of_choices_and_accuracy_per_character():
    log_probs = [[-4.0, -6.0], [-3.0, -2.0], [-5.0, -4.0, -9.0]]
    choices = [["ab", "abcdef"], ["a", "b"], ["abcde", "ab", "c"]]
    found = multiple_choice_accuracy(log_probs, choices, [1, 1, 0])
    # Raw: 0, 1, 1. By length: -2 and -1; -3 and -2; -1, -2 and -9.
    assert found == {"accuracy": pytest.approx(1 / 3), "accuracy_by_length": 1.0}
