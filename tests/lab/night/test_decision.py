# SPDX-License-Identifier: Apache-2.0
"""Decisions on proposals: error rates of tests and of whole nights, and what decides."""

import math

import numpy as np
import pytest

from transformer_jax.lab.night.decision import LOOKS, ErrorControl, judge
from transformer_jax.scoring.sequential import oriented

DRAWS = 4000
SEEDS = LOOKS[-1]


def test_levels_sum_to_the_rate():
    control = ErrorControl("alpha_spending", 0.05, proposals=10)
    levels = [control.level(number, [True]) for number in range(100_000)]
    assert levels[:10] == pytest.approx([0.004] * 10)
    assert levels[10] == pytest.approx(0.05 * 0.2 * 10 / (10 * 11))
    assert 0.0499 < sum(levels) < 0.05


def test_levels_of_false_discoveries_are_those_of_the_paper():
    """Zrnic, Ramdas and Jordan (2021): the level times the number of discoveries, at least 1."""
    spending = ErrorControl("alpha_spending", 0.05)
    control = ErrorControl("false_discoveries", 0.05)
    outcomes = [False, True, None, True, True, False]
    factors = [
        control.level(number, outcomes[:number]) / spending.level(number, outcomes[:number])
        for number in range(7)
    ]
    assert factors == pytest.approx([1, 1, 1, 1, 2, 3, 3])


def some_diverged(rng, shape):
    return np.where(rng.random(shape) < 0.2, -np.inf, rng.standard_normal(shape))


def correlated(rng, shape):
    return rng.standard_normal(shape) + 2 * rng.standard_normal((shape[0], 1, shape[2]))


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, shape: rng.standard_normal(shape),
        lambda rng, shape: rng.lognormal(size=shape),
        lambda rng, shape: -rng.lognormal(size=shape),
        lambda rng, shape: rng.integers(0, 3, shape).astype(float),
        lambda rng, shape: np.zeros(shape),
        some_diverged,
        correlated,
    ],
)
def test_a_proposal_without_an_effect_is_rarely_promoted(draw):
    """Without the refusals between the looks, which only lower the share."""
    level = 0.05
    values = draw(np.random.default_rng(3), (DRAWS, 2, SEEDS))
    is_promoted = np.zeros(DRAWS, bool)  # at some look
    for count in LOOKS:
        is_promoted |= judge(values[:, 0, :count], values[:, 1], level, 0.0).promotes
    assert is_promoted.mean() < level + 3 * math.sqrt(level * (1 - level) / DRAWS)


def spread(center, count, width=1.0):
    return center + width * np.linspace(-1, 1, count)


BASELINE = spread(0.0, SEEDS)
PROMOTE = (True, False)
REFUSE = (False, True)
CONTINUE = (False, False)


@pytest.mark.parametrize(
    ("values", "baseline", "smallest", "verdict"),
    [
        (spread(5.0, 9), BASELINE, 1.0, PROMOTE),
        (spread(5.0, 4), BASELINE, 1.0, CONTINUE),  # too few to reach the level
        (spread(5.0, 1), BASELINE, 1.0, CONTINUE),
        (spread(0.0, 1), BASELINE, 0.0, REFUSE),
        (spread(0.6, 2, 0.1), BASELINE, 0.1, CONTINUE),
        (np.array([0.65, 0.5]), BASELINE[::-1], 0.0, REFUSE),  # it wins 23 of 30 comparisons
        # It wins both pairs, but only half of all comparisons.
        (np.array([-0.9, 0.9]), np.array([-1.0, *spread(0.0, 14)]), 0.0, CONTINUE),
        (spread(0.6, 2, 0.1), BASELINE, 2.0, REFUSE),  # less than half of interest
        (spread(5.0, 9), BASELINE, 6.0, CONTINUE),  # less than of interest so far
        (spread(5.0, 15), BASELINE, 6.0, REFUSE),
        # What a seed has in common: the samples overlap, the pairs do not.
        (spread(1.0, 15) + 0.01 * np.sin(np.arange(15)), BASELINE, 0.0, PROMOTE),
        (np.full(4, -np.inf), BASELINE, 0.0, REFUSE),
        (np.full(4, -np.inf), np.full(15, -np.inf), 0.0, REFUSE),
        (spread(0.0, 9), np.full(15, -np.inf), 0.0, PROMOTE),
        (np.ones(9), np.zeros(15), 0.0, PROMOTE),
        (np.zeros(9), np.zeros(15), 0.0, REFUSE),
    ],
)
def test_verdicts(values, baseline, smallest, verdict):
    assert judge(values, baseline, 5e-4, smallest)[:2] == verdict


def test_lower_values_may_be_better():
    assert oriented([1.0, math.nan, math.inf], "lower").tolist() == [-1.0, -math.inf, -math.inf]
    assert oriented([1.0, math.nan, math.inf], "higher").tolist() == [1.0, -math.inf, -math.inf]


def test_many_proposals_are_decided_as_each():
    rng = np.random.default_rng(5)
    values = rng.standard_normal((20, 9)) + 1.0
    baseline = some_diverged(rng, (20, 15))
    level = np.linspace(1e-4, 0.05, 20)
    judgements = judge(values, baseline, level, 0.5)
    for index in range(20):
        alone = judge(values[index], baseline[index], level[index], 0.5)
        assert alone == tuple(array[index] for array in judgements)
