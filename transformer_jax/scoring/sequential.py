# SPDX-License-Identifier: Apache-2.0
"""A test that looks at the seeds several times, and may stop at each look.

Each look is a one-sided t-test of the paired differences so far. All looks use the same nominal
level, the largest for which the whole procedure keeps its error rate (Pocock 1977); it is computed
by simulation, so that it holds for few seeds, too.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

HOLDS = "holds"
FAILS = "does not hold"
UNDECIDED = "undecided"
_SIMULATED = 200_000


@dataclasses.dataclass(frozen=True)
class Plan:
    """Plan of a sequential test.

    Attributes:
      looks: numbers of seeds at which the test is made, increasing.
      smallest: smallest difference of interest; larger is better.
      error_rate: largest probability of "holds" if there is no difference, and of "does not hold"
        if the difference is `smallest`, over all looks.

    Raises:
      ValueError: the looks do not increase from at least two, or a number is out of range.
    """

    looks: tuple[int, ...] = (3, 5, 8, 12)
    smallest: float = 0.0
    error_rate: float = 0.05

    def __post_init__(self) -> None:
        if not self.looks or self.looks[0] < 2 or sorted(set(self.looks)) != list(self.looks):
            raise ValueError(f"looks is {self.looks}; give increasing numbers of seeds from 2 on")
        if not 0 < self.error_rate < 0.5:
            raise ValueError(f"error_rate is {self.error_rate}; it must be between 0 and 0.5")
        if not (math.isfinite(self.smallest) and self.smallest >= 0):
            raise ValueError(f"smallest is {self.smallest}; it must be 0 or more")

    @property
    def level(self) -> float:
        """Nominal level of each look's one-sided test."""
        return nominal_level(self.looks, self.error_rate)


@dataclasses.dataclass(frozen=True)
class Look:
    """Result of one look at the seeds.

    Attributes:
      verdict: "holds" (the difference is above 0), "does not hold" (it is below the smallest of
        interest), or "undecided".
      mean: mean difference.
      low, high: interval of the mean difference, valid at all looks together.
      seeds: number of seeds.
      test: name of the test.
    """

    verdict: str
    mean: float
    low: float
    high: float
    seeds: int
    test: str


@functools.cache
def nominal_level(looks: tuple[int, ...], error_rate: float) -> float:
    """Nominal one-sided level with which the looks together have an error rate.

    Differences are drawn from a normal distribution of mean 0; the level is the quantile of the
    smallest p-value over the looks. The draws have a fixed seed.
    """
    if len(looks) == 1:
        return error_rate
    draws = np.random.default_rng(0).standard_normal((_SIMULATED, looks[-1]))
    smallest = np.ones(_SIMULATED)
    for count in looks:
        seen = draws[:, :count]
        t = seen.mean(1) / (seen.std(1, ddof=1) / math.sqrt(count))
        smallest = np.minimum(smallest, stats.t.sf(t, count - 1))
    return float(np.quantile(smallest, error_rate))


def decide(differences: Sequence[float], plan: Plan) -> Look:
    """Decides from the differences of the seeds so far, positive where the claim is right.

    If one side of a seed diverged, its difference is infinite, and the looks count signs in place
    of a t-test and share the error rate equally. If both sides diverged (NaN), it counts as 0.
    """
    values = np.nan_to_num(np.asarray(differences, float), nan=0.0, posinf=np.inf, neginf=-np.inf)
    count = len(values)
    if not np.isfinite(values).all():
        return _decide_by_signs(values, plan)
    mean = float(values.mean())
    deviation = float(values.std(ddof=1))
    half = float(stats.t.isf(plan.level, count - 1) * deviation / math.sqrt(count))
    low = mean - half
    high = mean + half
    if high < plan.smallest or (plan.smallest == 0 and high <= 0):
        verdict = FAILS
    else:
        verdict = HOLDS if low > 0 else UNDECIDED
    return Look(verdict, mean, low, high, count, "sequential paired t-test")


def _decide_by_signs(values: np.ndarray, plan: Plan) -> Look:
    """Sign test (Bonferroni over the looks): of differences above 0, and below the smallest."""
    count = len(values)
    level = plan.error_rate / len(plan.looks)
    above = int((values > 0).sum())
    below = int((values < plan.smallest).sum())
    if stats.binom.sf(below - 1, count, 0.5) <= level:
        verdict = FAILS
    else:
        verdict = HOLDS if stats.binom.sf(above - 1, count, 0.5) <= level else UNDECIDED
    median = float(np.median(values))
    return Look(verdict, median, -math.inf, math.inf, count, "sequential sign test")
