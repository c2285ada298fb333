# SPDX-License-Identifier: Apache-2.0
"""Error rate, power and cost of drawn nights, in a short form of the simulation."""

import math

import numpy as np
import pytest

from experiments.night_simulation import ERROR_RATE, SHAPES, Night, simulate

NIGHTS = 200
HIGHEST = ERROR_RATE + 3 * math.sqrt(ERROR_RATE * (1 - ERROR_RATE) / NIGHTS)


def outcome_of(night):
    return simulate(night, NIGHTS, np.random.default_rng(1))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_night_without_effects_rarely_promotes(shape):
    assert outcome_of(Night(share=0.0, shape=shape)).any_false < HIGHEST


def test_improvements_are_found_with_four_times_the_trainings_of_one_run_a_proposal():
    outcome = outcome_of(Night())
    assert outcome.power > 0.6
    assert outcome.any_false < HIGHEST
    assert outcome.runs.mean() < 4 * 101


def test_false_discoveries_find_more_and_keep_their_share():
    outcome = outcome_of(Night("false_discoveries"))
    assert outcome.false_share < ERROR_RATE
    assert outcome.power > outcome_of(Night()).power


def test_keep_if_better_makes_records_of_noise():
    """The expected number of records among 101 values, less the first: 1/2 + ... + 1/101."""
    records = outcome_of(Night("keep if better", share=0.0)).false
    expected = sum(1 / number for number in range(2, 102))
    assert records.mean() == pytest.approx(expected, abs=3 * records.std() / math.sqrt(NIGHTS))
