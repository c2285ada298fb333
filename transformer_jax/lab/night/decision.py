# SPDX-License-Identifier: Apache-2.0
"""The decision on a proposal, and the error rate of all decisions of a night."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from transformer_jax.scoring.sequential import has_ties, interval_of_median

PROMOTE = "promote"
REFUSE = "refuse"
CONTINUE = "continue"

CONTROLS = ("alpha_spending",)
"""What the error rate of a night may bound."""


class ErrorControl(NamedTuple):
    """Gives each test of a night its level, so that all together keep an error rate."""

    kind: str
    error_rate: float

    def level(self, number: int, outcomes: Sequence[bool | None]) -> float:
        """Level of the test of this number, from 0; the levels of all numbers sum to the rate."""
        return self.error_rate * 6 / (math.pi * (number + 1)) ** 2


class Decision(NamedTuple):
    """Verdict on a proposal, with the mean difference and its interval at the level of the test."""

    verdict: str
    mean: float
    low: float
    high: float


def decide_proposal(
    differences: Sequence[float], level: float, smallest: float, looks: Sequence[int]
) -> Decision:
    """Promotes, refuses or continues, by the differences of the pairs so far.

    The looks share the level equally. A proposal is refused at once where its mean is not above 0.
    """
    values = np.asarray(differences, float)
    share = level / len(looks)
    if not np.isfinite(values).all() or has_ties(values):
        mean = float(np.median(values))
        low, high = interval_of_median(values, share)
    else:
        mean = float(values.mean())
        error = float(values.std(ddof=1)) / math.sqrt(len(values))
        half = float(stats.t.isf(share, len(values) - 1)) * error
        low = mean - half
        high = mean + half
    if low > 0:
        return Decision(PROMOTE, mean, low, high)
    is_last = len(values) >= looks[-1]
    return Decision(REFUSE if mean <= 0 or is_last else CONTINUE, mean, low, high)
