"""Patience by literal scores."""

import math

import pytest

from transformer_jax.training.patience import Patience

NAN = math.nan


@pytest.mark.parametrize(
    ("scores", "ended"),
    [
        ([1, 2, 3, 4], False),
        ([1, 2, 2], False),  # one without a better score
        ([1, 2, 2, 1.5], True),
        ([1, 0, 2, 1], False),
        ([NAN, NAN], True),
        ([-3, NAN, -2], False),
    ],
)
def test_two_evaluations_without_a_better_score_end_it(scores, ended):
    assert Patience(2, scores=scores).exhausted is ended


@pytest.mark.parametrize(
    ("scores", "rate"),
    [
        ([1, 2, 3], 1.0),
        ([3, 2], 1.0),
        ([3, 2, 1], 0.1),
        ([3, 2, 1, 2], 0.1),
        ([3, 2, 1, 2, 2], 0.01),  # two more since it was lowered
        ([3, 2, 1, 4, 3, 3], 0.01),
        ([3, 2, 1, 2, 4, 3], 0.1),
    ],
)
def test_two_evaluations_without_a_better_score_lower_the_rate(scores, rate):
    patience = Patience(lowers_after=2, factor=0.1, scores=scores)
    assert patience.rate == pytest.approx(rate)
    assert not patience.exhausted


def test_without_either_nothing_follows():
    patience = Patience(scores=[3.0] * 100)
    assert (patience.rate, patience.exhausted) == (1.0, False)
