# SPDX-License-Identifier: Apache-2.0
"""Error rates of the project's tests, in a short form of the simulation."""

import pytest

from experiments import evidence_simulation as simulation


@pytest.mark.parametrize("test", sorted({case.test for case in simulation.cases()}))
def test_equal_models_differ_as_rarely_as_stated(test, monkeypatch):
    """Skewed differences, skewed seeds of other deviations, and intervals over 20 examples with
    heavy tails exceed the rate."""
    monkeypatch.setattr(simulation, "CHECKED", 3)
    for case in simulation.cases():
        if case.test == test and is_symmetric(case):
            # A draw of 8 and 8 seeds has 12,870 divisions.
            draws = 250 if (test, case.number) == ("over seeds", "8 and 8") else 1000
            wrong, covered = simulation.estimate(case, draws)
            assert not simulation.exceeds(wrong, simulation.LEVEL, draws), case
            if case.coverage:
                assert not simulation.exceeds(1 - covered, 1 - case.coverage, draws), case


def is_symmetric(case):
    skewed = {"differences exponential", "differences -exponential"}
    skewed.add("exponential, deviations 1 and 3")
    if case.test == "paired permutation" and case.drawn == "differences heavy tails":
        return False  # the bootstrap interval of few values is too narrow
    return case.drawn not in skewed
