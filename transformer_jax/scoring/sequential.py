# SPDX-License-Identifier: Apache-2.0
"""A test that looks at the seeds several times, and may stop at each look.

Each look is an interval of the mean of the paired differences so far, by a t-test. All looks use
the same nominal level, the largest for which the whole procedure keeps its error rate (Pocock
1977); it is computed by simulation, so that it holds for few seeds, too. Where differences tie or
are infinite, the interval is that of a sign test.
"""

import dataclasses
import functools
import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

HOLDS = "holds"
HOLDS_SMALL = "holds, but may be smaller than of interest"
FAILS = "does not hold by as much as is of interest"
OPPOSITE = "the opposite holds"
UNDECIDED = "undecided"
_SIMULATED = 200_000
_ROUNDING = 1e-9  # relative; values whose distance is smaller count as equal


@dataclasses.dataclass(frozen=True)
class Plan:
    """Plan of a sequential test.

    Attributes:
      looks: numbers of seeds at which the test is made, increasing.
      smallest: smallest difference of interest; larger is better.
      error_rate: largest probability that the claim holds if there is no difference, and that it
        does not if the difference is `smallest`, over all looks.

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
      verdict: of the interval (`verdict_of`).
      mean: mean difference; of a sign test, the median.
      low, high: its interval, valid at all looks together.
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


def verdict_of(low: float, high: float, smallest: float) -> str:
    """What an interval of a difference says of a claim that the difference is above 0.

    Args:
      smallest: smallest difference of interest.
    """
    if low > 0:
        return HOLDS if low >= smallest else HOLDS_SMALL
    if high < 0:
        return OPPOSITE
    is_small = high < smallest or (smallest == 0 and high <= 0)
    return FAILS if is_small else UNDECIDED


def decide(differences: ArrayLike, plan: Plan) -> Look:
    """Decides from the differences of the seeds so far, positive where the claim is right.

    Where differences tie, as those of metrics with few values do, a t-test would not keep its rate:
    three equal ones have no deviation. A sign test decides, whose looks share the error rate
    equally; so it does if one side of a seed diverged, whose difference is infinite. If both sides
    diverged (NaN), the difference counts as 0.
    """
    values = np.nan_to_num(np.asarray(differences, float), nan=0.0, posinf=np.inf, neginf=-np.inf)
    count = len(values)
    if not np.isfinite(values).all() or has_ties(values):
        mean = float(np.median(values))
        low, high = interval_of_median(values, plan.error_rate / len(plan.looks))
        test = "sequential sign test"
    else:
        mean = float(values.mean())
        low, high = map(float, interval_of_mean(values, plan.level))
        test = "sequential paired t-test"
    return Look(verdict_of(low, high, plan.smallest), mean, low, high, count, test)


def oriented(values: ArrayLike, better: str) -> np.ndarray:
    """Values of which higher ones are better; -inf where a run diverged, on either side.

    Args:
      better: "lower" or "higher".
    """
    signed = np.asarray(values, float) * (1 if better == "higher" else -1)
    return np.where(np.isfinite(signed), signed, -np.inf)


def paired_differences(first: ArrayLike, second: ArrayLike) -> np.ndarray:
    """Differences of the first values from the second of the same seed: the same initial key and
    the same order of the data. Infinite if one side diverged, 0 if both did.

    Args:
      first, second: [..., seeds], as `oriented` returns them.
    """
    a = np.asarray(first, float)
    b = np.asarray(second, float)
    with np.errstate(invalid="ignore"):  # between equal infinities
        return np.where(a == b, 0.0, a - b)


def has_ties(values: ArrayLike) -> np.ndarray:
    """Whether at most two thirds of the values [..., n] differ from each other, up to rounding."""
    ordered = np.sort(np.asarray(values, float))
    with np.errstate(invalid="ignore"):  # between infinities
        gaps = np.diff(ordered)
        rounding = _ROUNDING * np.abs(ordered).max(-1, keepdims=True)
        num_distinct = 1 + (gaps > rounding).sum(-1)
    return 3 * num_distinct <= 2 * ordered.shape[-1]


def interval_of_mean(values: np.ndarray, level: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Interval of the mean of values [..., n] by the t-test: each side is exceeded with the
    probability `level` [...]."""
    count = values.shape[-1]
    mean = values.mean(-1)
    half = stats.t.isf(level, count - 1) * values.std(-1, ddof=1) / math.sqrt(count)
    return mean - half, mean + half


def interval_of_shift(
    differences: np.ndarray, count: int, level: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """Interval of the shift between two independent samples by the rank test (Mann and Whitney
    1947): each side is exceeded with at most the probability `level` [...].

    It is exact for samples of one distribution, of whatever shape; positive correlation between
    the samples makes it wider than it had to be. Infinite if there are too few values.

    Args:
      differences: [..., n * m], of each value of a sample from each of the other, in any order.
      count: n, the number of values of a sample.
    """
    ordered = np.sort(differences, axis=-1)
    total = ordered.shape[-1]
    tail = _rank_distribution(count, total // count)
    # Number of differences that can lie beyond a bound.
    beyond = np.broadcast_to(np.searchsorted(tail, level, side="right"), ordered.shape[:-1])
    low = np.take_along_axis(ordered, np.maximum(beyond - 1, 0)[..., None], -1)[..., 0]
    high = np.take_along_axis(ordered, np.minimum(total - beyond, total - 1)[..., None], -1)[..., 0]
    return np.where(beyond > 0, low, -np.inf), np.where(beyond > 0, high, np.inf)


@functools.cache
def _rank_distribution(first: int, second: int) -> np.ndarray:
    """Probability that at most u = 0, 1, ... of all differences between two samples of these sizes
    are negative, if both are of one distribution.

    The number of arrangements with u negative ones is the coefficient of q^u in the Gaussian
    binomial: the product of (1 - q^(second + i)) / (1 - q^i) for i = 1 to first.
    """
    arrangements = np.zeros(first * second + 1)
    arrangements[0] = 1.0
    for i in range(1, first + 1):
        shift = second + i
        arrangements[shift:] -= arrangements[:-shift].copy()
        for start in range(i):
            arrangements[start::i] = np.cumsum(arrangements[start::i])
    return np.cumsum(arrangements) / math.comb(first + second, first)


def interval_of_median(values: np.ndarray, level: float) -> tuple[float, float]:
    """Interval of the median by the sign test: the median is below it, or above, with at most the
    probability `level` each. Infinite if there are too few values."""
    ordered = np.sort(values)
    counts = np.arange(len(ordered))
    # Number of values that can lie beyond a bound.
    beyond = int((stats.binom.cdf(counts, len(ordered), 0.5) <= level).sum())
    if beyond == 0:
        return -math.inf, math.inf
    return float(ordered[beyond - 1]), float(ordered[-beyond])
