# SPDX-License-Identifier: Apache-2.0
"""Sequential tests: error rates of the whole procedure, and what decides."""

import math

import numpy as np
import pytest

from transformer_jax.scoring.sequential import (
    FAILS,
    HOLDS,
    HOLDS_SMALL,
    OPPOSITE,
    UNDECIDED,
    Plan,
    decide,
    interval_of_median,
    nominal_level,
    verdict_of,
)

PLAN = Plan(looks=(3, 5, 8, 12), smallest=1.0)


def share(draws, *verdicts):
    """Share of draws with one of the verdicts, at the first look that decides or at the last."""
    count = 0
    for draw in draws:
        looks = (decide(draw[:number], PLAN).verdict for number in PLAN.looks)
        count += next((verdict for verdict in looks if verdict != UNDECIDED), None) in verdicts
    return count / len(draws)


@pytest.fixture(scope="module")
def draws():
    return np.random.default_rng(7).standard_normal((1000, 12))


def limit(rate, number):
    """Rate plus three deviations of its estimate."""
    return rate + 3 * math.sqrt(rate * (1 - rate) / number)


def test_equal_models_rarely_hold(draws):
    assert 0.02 < share(draws, HOLDS, HOLDS_SMALL) < limit(0.05, len(draws))


def test_the_smallest_difference_is_rarely_refused(draws):
    assert 0.01 < share(draws + 1.0, FAILS, OPPOSITE) < limit(0.05, len(draws))


def test_looking_often_at_the_plain_level_would_not_keep_the_rate(draws):
    """The nominal level corrects for this."""
    assert nominal_level((3, 5, 8, 12), 0.05) < 0.03
    found = np.zeros(len(draws), bool)
    for count, t in {3: 2.92, 5: 2.132, 8: 1.895, 12: 1.796}.items():  # one-sided 0.05
        seen = draws[:, :count]
        found |= seen.mean(1) / seen.std(1, ddof=1) * math.sqrt(count) > t
    assert found.mean() > 0.1


def test_clear_differences_are_decided_at_the_first_looks():
    assert decide([2.0, 2.1, 1.9], PLAN).verdict == HOLDS
    assert decide([-2.0, -2.1, -1.9], PLAN).verdict == OPPOSITE
    assert decide([0.1, 0.11, 0.09], PLAN).verdict == HOLDS_SMALL
    assert decide([0.1, 0.11, -0.09], PLAN).verdict == FAILS
    assert decide([0.5, 2.0, -1.0], PLAN).verdict == UNDECIDED


@pytest.mark.parametrize(
    ("low", "high", "smallest", "expected"),
    [
        (1.0, 2.0, 1.0, HOLDS),
        (0.5, 2.0, 1.0, HOLDS_SMALL),
        (0.5, 0.8, 1.0, HOLDS_SMALL),
        (-0.5, 0.8, 1.0, FAILS),
        (-0.5, -0.1, 1.0, OPPOSITE),
        (-0.5, 1.0, 1.0, UNDECIDED),
        (-0.5, 0.0, 0.0, FAILS),
        (-0.5, 0.1, 0.0, UNDECIDED),
    ],
)
def test_a_verdict_is_that_of_the_interval(low, high, smallest, expected):
    assert verdict_of(low, high, smallest) == expected


def test_the_interval_of_a_median_is_exact():
    """One of eight values lies beyond with 9/256 on each side, none with 1/256."""
    values = np.arange(8.0)
    assert interval_of_median(values, 0.05) == (1.0, 6.0)
    assert interval_of_median(values, 0.01) == (0.0, 7.0)
    assert interval_of_median(values, 0.001) == (-math.inf, math.inf)


def test_differences_that_tie_wait_for_more():
    """Three equal ones have no deviation, and equal models have them in one case of four."""
    plan = Plan(looks=(3, 8), smallest=1.0)
    assert decide([2.0, 2.0, 2.0], plan).verdict == UNDECIDED
    assert decide([2.0] * 8, plan).verdict == HOLDS
    assert decide([0.0] * 8, plan).verdict == FAILS
    rng = np.random.default_rng(0)
    for values in ((-1.0, 1.0), (-1.0, 0.0, 1.0)):
        drawn = rng.choice(values, (500, 12))
        assert share(drawn, HOLDS, HOLDS_SMALL) < limit(0.05, 500)


def test_one_look_is_the_t_test():
    plan = Plan(looks=(4,))
    found = decide([1.0, 2.0, 3.0, 4.0], plan)
    half = 2.3534 * math.sqrt(5 / 3) / 2  # t of 0.95 with three degrees of freedom
    assert (found.low, found.high) == pytest.approx((2.5 - half, 2.5 + half), rel=1e-4)


def test_diverged_seeds_count_by_sign():
    plan = Plan(looks=(3, 8))
    assert decide([math.inf] * 3, plan).verdict == UNDECIDED  # 1/8 is above 0.025
    assert decide([math.inf] * 8, plan).verdict == HOLDS
    assert decide([-math.inf] * 8, plan).verdict == OPPOSITE
    assert decide([math.nan] * 8, plan).verdict == FAILS
