# SPDX-License-Identifier: Apache-2.0
"""Sequential tests: error rates of the whole procedure, and what decides."""

import math

import numpy as np
import pytest

from transformer_jax.scoring.sequential import Plan, decide, nominal_level

PLAN = Plan(looks=(3, 5, 8, 12), smallest=1.0)


def verdict(draws, plan=PLAN):
    """Verdict of the first look that decides, or of the last."""
    for count in plan.looks:
        found = decide(draws[:count], plan)
        if found.verdict != "undecided":
            break
    return found.verdict


@pytest.fixture(scope="module")
def draws():
    return np.random.default_rng(7).standard_normal((2000, 12))


def limit(rate, number):
    """Rate plus three deviations of its estimate."""
    return rate + 3 * math.sqrt(rate * (1 - rate) / number)


def test_equal_models_rarely_hold(draws):
    verdicts = [verdict(draw) for draw in draws]
    held = np.mean([one == "holds" for one in verdicts])
    assert 0.02 < held < limit(0.05, len(draws))


def test_the_smallest_difference_is_rarely_refused(draws):
    refused = np.mean([verdict(draw + 1.0) == "does not hold" for draw in draws])
    assert 0.01 < refused < limit(0.05, len(draws))


def test_looking_often_at_the_plain_level_would_not_keep_the_rate(draws):
    """The nominal level corrects for this."""
    assert nominal_level((3, 5, 8, 12), 0.05) < 0.03
    found = np.zeros(len(draws), bool)
    for count, t in {3: 2.92, 5: 2.132, 8: 1.895, 12: 1.796}.items():  # one-sided 0.05
        seen = draws[:, :count]
        found |= seen.mean(1) / seen.std(1, ddof=1) * math.sqrt(count) > t
    assert found.mean() > 0.1


def test_clear_differences_are_decided_at_the_first_looks():
    assert decide([2.0, 2.1, 1.9], PLAN).verdict == "holds"
    assert decide([-2.0, -2.1, -1.9], PLAN).verdict == "does not hold"
    assert decide([0.1, 0.11, 0.09], PLAN).verdict == "does not hold"  # smaller than of interest
    assert decide([0.5, 2.0, -1.0], PLAN).verdict == "undecided"


def test_one_look_is_the_t_test():
    plan = Plan(looks=(4,))
    found = decide([1.0, 2.0, 3.0, 4.0], plan)
    half = 2.3534 * math.sqrt(5 / 3) / 2  # t of 0.95 with three degrees of freedom
    assert (found.low, found.high) == pytest.approx((2.5 - half, 2.5 + half), rel=1e-4)


def test_diverged_seeds_count_by_sign():
    plan = Plan(looks=(3, 8))
    assert decide([math.inf] * 3, plan).verdict == "undecided"  # 1/8 is above 0.025
    assert decide([math.inf] * 8, plan).verdict == "holds"
    assert decide([-math.inf] * 8, plan).verdict == "does not hold"
    assert decide([math.nan, 0.0, 0.0], plan).verdict == "does not hold"
