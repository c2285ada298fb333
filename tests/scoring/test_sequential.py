# SPDX-License-Identifier: Apache-2.0
"""Sequential tests: error rates of the whole procedure, and what decides."""

import math

import numpy as np
import pytest
from scipy import stats

from transformer_jax.scoring.sequential import (
    FAILS,
    HOLDS,
    HOLDS_SMALL,
    OPPOSITE,
    UNDECIDED,
    Plan,
    decide,
    interval_of_median,
    interval_of_shift,
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


def test_equal_models_rarely_hold_and_the_smallest_difference_is_rarely_refused():
    rng = np.random.default_rng(7)
    draws = rng.standard_normal((1000, 12))
    ties = [rng.choice(values, (500, 12)) for values in ((-1.0, 1.0), (-1.0, 0.0, 1.0))]

    def highest(rate, number):
        return rate + 3 * math.sqrt(rate * (1 - rate) / number)  # three deviations of its estimate

    assert 0.02 < share(draws, HOLDS, HOLDS_SMALL) < highest(0.05, 1000)
    assert 0.01 < share(draws + 1.0, FAILS, OPPOSITE) < highest(0.05, 1000)
    assert all(share(tied, HOLDS, HOLDS_SMALL) < highest(0.05, 500) for tied in ties)
    # Looking as often at the plain level, one-sided 0.05, would not keep the rate.
    assert nominal_level((3, 5, 8, 12), 0.05) < 0.03
    holds = np.zeros(len(draws), bool)
    for count, t in {3: 2.92, 5: 2.132, 8: 1.895, 12: 1.796}.items():
        seen = draws[:, :count]
        holds |= seen.mean(1) / seen.std(1, ddof=1) * math.sqrt(count) > t
    assert holds.mean() > 0.1


@pytest.mark.parametrize(
    ("differences", "smallest", "verdict"),
    [
        # Clear ones are decided at the first look.
        ([2.0, 2.1, 1.9], 1.0, HOLDS),
        ([-2.0, -2.1, -1.9], 1.0, OPPOSITE),
        ([0.1, 0.11, 0.09], 1.0, HOLDS_SMALL),
        ([0.1, 0.11, -0.09], 1.0, FAILS),
        ([0.5, 2.0, -1.0], 1.0, UNDECIDED),
        # Three equal ones have no deviation, and equal models have them in one case of four.
        ([2.0] * 3, 1.0, UNDECIDED),
        ([2.0] * 8, 1.0, HOLDS),
        ([0.0] * 8, 1.0, FAILS),
        # Seeds that diverged count by sign; 1/8 is above 0.025.
        ([math.inf] * 3, 0.0, UNDECIDED),
        ([math.inf] * 8, 0.0, HOLDS),
        ([-math.inf] * 8, 0.0, OPPOSITE),
        ([math.nan] * 8, 0.0, FAILS),
    ],
)
def test_verdicts(differences, smallest, verdict):
    assert decide(differences, Plan(looks=(3, 8), smallest=smallest)).verdict == verdict


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


@pytest.mark.parametrize("sizes", [(1, 16), (4, 9), (12, 16)])
def test_the_interval_of_a_shift_is_that_of_the_exact_rank_test(sizes):
    """Its lower bound is above 0 for the levels at which scipy's test rejects, and no others."""
    first = np.random.default_rng(1).standard_normal(sizes[0]) + 0.8
    second = np.random.default_rng(2).standard_normal(sizes[1])
    differences = np.subtract.outer(first, second).ravel()
    p = stats.mannwhitneyu(first, second, alternative="greater", method="exact").pvalue
    levels = p * np.array([0.999, 1.001])
    lows, highs = interval_of_shift(np.tile(differences, (2, 1)), sizes[0], levels)
    assert (lows > 0).tolist() == [False, True]
    # Exchanging the samples exchanges the bounds.
    np.testing.assert_array_equal(interval_of_shift(-differences, sizes[0], p)[0], -highs[1])


def test_one_look_is_the_t_test():
    plan = Plan(looks=(4,))
    found = decide([1.0, 2.0, 3.0, 4.0], plan)
    half = 2.3534 * math.sqrt(5 / 3) / 2  # t of 0.95 with three degrees of freedom
    assert (found.low, found.high) == pytest.approx((2.5 - half, 2.5 + half), rel=1e-4)
