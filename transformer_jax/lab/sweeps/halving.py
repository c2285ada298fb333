# SPDX-License-Identifier: Apache-2.0
"""Asynchronous successive halving (ASHA, Li et al. 2020): most trials train for few steps.

Each trial trains to the first rung, a number of steps. Of the trials that have reached a rung, the
best 1/factor are promoted to the next one, at any time, without waiting for the others.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

Scores = Mapping[int, float]
"""Trial -> its score at a rung, higher is better; -inf if it diverged."""


class Job(NamedTuple):
    """Training of a trial up to a rung."""

    trial: int
    rung: int


def rung_steps(first: int, factor: int, num_steps: int) -> list[int]:
    """Steps of the rungs: first, first * factor, ..., num_steps.

    Rungs within a factor of sqrt(factor) of num_steps are left out.
    """
    steps = []
    while first * math.sqrt(factor) <= num_steps:
        steps.append(first)
        first *= factor
    return [*steps, num_steps]


def next_promotion(
    rungs: Sequence[Scores], started: Sequence[Collection[int]], factor: int
) -> Job | None:
    """The promotion that is due, to the highest rung first; None if there is none.

    Args:
      rungs: scores of the trials that have reached each rung.
      started: trials that train, or have trained, to each rung.
      factor: the share of trials that is promoted is 1/factor.
    """
    for rung in reversed(range(len(rungs) - 1)):
        for trial in ranking(rungs[rung])[: len(rungs[rung]) // factor]:
            if trial not in started[rung + 1]:
                return Job(trial, rung + 1)
    return None


def last_promotion(rungs: Sequence[Scores], started: Sequence[Collection[int]]) -> Job | None:
    """The promotion when nothing else is left to do: until a trial has trained to the last rung.

    A rung with fewer trials than the factor promotes none otherwise. Arguments are those of
    `next_promotion`.
    """
    if any(math.isfinite(score) for score in rungs[-1].values()):
        return None
    for rung in reversed(range(len(rungs) - 1)):
        for trial in ranking(rungs[rung]):
            if trial not in started[rung + 1]:
                return Job(trial, rung + 1)
    return None


def ranking(scores: Scores) -> list[int]:
    """The trials that did not diverge, the best first; the earliest of equals first."""
    finite = [trial for trial, score in scores.items() if math.isfinite(score)]
    return sorted(finite, key=lambda trial: (-scores[trial], trial))
