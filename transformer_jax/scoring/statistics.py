# SPDX-License-Identifier: Apache-2.0
"""Tests of a difference: over seeds (pairs, or independent samples) and over examples (pairs).

A difference is always that of the second sample from the first, such as a variant from its base.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from transformer_jax.scoring import lower_is_better
from transformer_jax.scoring.sequential import has_ties, interval_of_mean, paired_differences

LEVEL = 0.05
"""Level of significance: share of false differences among tests of equal models."""
_PAIRED = "paired t"
_RESAMPLES = 10_000
_MOST_DRAWN = 2**20  # numbers at a time
_MOST_PERMUTATIONS = 20_000
"""Up to so many, all divisions of the seeds into two samples are counted."""
_POWER = 0.8
_MOST_SEEDS = 1000
_BISECTIONS = 24


@dataclasses.dataclass(frozen=True)
class Difference:
    """A mean difference with its interval and test.

    Attributes:
      mean: of the second sample minus that of the first.
      low, high: 95% interval of the mean difference.
      p: two-sided p-value of "there is no difference".
      test: name of the test.
      effect: standardized difference: Hedges' g over seeds, the mean divided by the deviation of
        the differences over examples; NaN if nothing varies.
      number: values in each sample.
    """

    mean: float
    low: float
    high: float
    p: float
    test: str
    effect: float
    number: tuple[int, int]

    @property
    def is_significant(self) -> bool:
        """Returns True if the test rejects equality at the level 0.05."""
        return self.p < LEVEL


class SeedTest(NamedTuple):
    """Test of a metric over the seeds of a variant and of the base.

    Attributes:
      name: of the variant.
      difference: of the variant from the base.
      p_permutation: p-value of the permutation test.
      p_adjusted: the p-value adjusted for the number of tests (Holm 1979).
      seeds_to_decide: seeds of each that would decide a difference as large as this; None if it
        is decided, or a thousand are too few.
    """

    name: str
    metric: str
    difference: Difference
    p_permutation: float
    p_adjusted: float
    seeds_to_decide: int | None

    @property
    def differs(self) -> bool:
        """Returns True if the adjusted test finds a difference."""
        return self.p_adjusted < LEVEL


def compare_seeds(
    metric: str,
    values: Mapping[str, Sequence[float]],
    paired: Collection[str] = (),
    *,
    is_best_first: bool = False,
) -> list[SeedTest]:
    """Tests of a metric of several variants against the base, corrected for their number.

    Args:
      values: name -> value of each seed, NaN if it diverged; the first is the base. Variants with
        less than two values are left out, and all are if the base has less.
      paired: variants whose seeds are those of the base, in the same order: tested by
        `over_paired_seeds` if they have as many values.
      is_best_first: the base was chosen by these values, so that the tests are those of all pairs.
    """
    worst = math.inf if lower_is_better(metric) else -math.inf
    samples = {
        name: np.where(np.isnan(sample), worst, sample).tolist() for name, sample in values.items()
    }
    (_, first), *others = samples.items()
    variants = {name: sample for name, sample in others if min(len(sample), len(first)) > 1}
    differences = {}
    for name, sample in variants.items():
        has_pairs = name in paired and len(sample) == len(first)
        differences[name] = (over_paired_seeds if has_pairs else over_seeds)(first, sample)
    family = math.comb(len(variants) + 1, 2) if is_best_first else len(variants)
    adjusted = holm([difference.p for difference in differences.values()], family)
    tests = []
    for (name, difference), p in zip(differences.items(), adjusted, strict=True):
        sample = variants[name]
        is_paired = difference.test == _PAIRED
        needed = seeds_to_decide(first, sample, LEVEL / family, paired=is_paired)
        permuted = permutation_p(first, sample, paired=is_paired)
        tests.append(SeedTest(name, metric, difference, permuted, p, None if p < LEVEL else needed))
    return tests


def over_paired_seeds(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Difference of two samples of the same seeds, by a t-test of the pairs (Student 1908).

    Where differences tie or a seed diverged, that of `over_seeds`, which is right for pairs, too,
    but finds less.

    Raises:
      ValueError: a sample has less than two values, or the numbers of values differ.
    """
    differences = paired_differences(second, first)
    if len(differences) < 2 or not np.isfinite(differences).all() or has_ties(differences):
        return over_seeds(first, second)
    number = len(differences)
    mean = float(differences.mean())
    low, high = map(float, interval_of_mean(differences, LEVEL / 2))
    error = float(differences.std(ddof=1)) / math.sqrt(number)
    p = float(2 * stats.t.sf(abs(mean) / error, number - 1))
    return Difference(mean, low, high, p, _PAIRED, hedges_g(first, second), (number, number))


def over_seeds(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Difference of two samples of seeds, by Welch's t-test (1947).

    Where values of a sample tie, as those of metrics with few values do, a permutation test decides
    and its interval has the shifts that it does not reject: three equal values have no deviation.
    Infinite values, of seeds that diverged, are the worst: the permutation test is one of ranks,
    and the difference that of the medians.

    Raises:
      ValueError: a sample has less than two values.
    """
    if min(len(first), len(second)) < 2:
        raise ValueError("a test over seeds needs at least two seeds of each")
    a = np.asarray(first, float)
    b = np.asarray(second, float)
    number = (len(a), len(b))
    if not np.isfinite([*first, *second]).all():
        p = permutation_p(first, second)
        shift = float(paired_differences(np.median(b), np.median(a)))
        return Difference(shift, -math.inf, math.inf, p, "rank permutation", math.nan, number)
    mean = float(b.mean() - a.mean())
    effect = hedges_g(first, second)
    if has_ties(a) or has_ties(b):
        p = permutation_p(first, second)
        low, high = _permutation_interval(a, b)
        return Difference(mean, low, high, p, "permutation", effect, number)
    errors = np.array([a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)])  # of the means, squared
    error = math.sqrt(errors.sum())
    # Degrees of freedom by Welch and Satterthwaite.
    freedom = float(errors.sum() ** 2 / (errors**2 / (np.array(number) - 1)).sum())
    p = float(2 * stats.t.sf(abs(mean) / error, freedom))
    half = float(stats.t.isf(LEVEL / 2, freedom)) * error
    return Difference(mean, mean - half, mean + half, p, "Welch", effect, number)


def _permutation_interval(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Shifts of the second sample that the permutation test does not reject; infinite where it
    rejects none, as with three seeds of each."""
    mean = float(second.mean() - first.mean())
    spread = float(np.ptp(first) + np.ptp(second)) or abs(mean) or 1.0

    def bound(sign: int) -> float:
        accepted = mean
        rejected = mean + sign * 4 * spread
        if permutation_p(first + rejected, second) >= LEVEL:
            return sign * math.inf
        for _ in range(_BISECTIONS):
            middle = (accepted + rejected) / 2
            if permutation_p(first + middle, second) < LEVEL:
                rejected = middle
            else:
                accepted = middle
        return rejected

    return bound(-1), bound(1)


def permutation_p(first: ArrayLike, second: ArrayLike, *, paired: bool = False) -> float:
    """Two-sided p-value of the permutation test of the means, exact for few seeds; of ranks if a
    value is infinite.

    It assumes only that the seeds of equal models are exchangeable. The smallest value that n and m
    seeds can have is 2 / binomial(n + m, n), 0.1 with three of each; that of n pairs, whose two
    values are exchanged, is 2 / 2^n.
    """
    samples = np.asarray(second, float), np.asarray(first, float)
    together = np.concatenate(samples)
    if not np.isfinite(together).all():
        samples = tuple(np.split(stats.rankdata(together), [len(samples[0])]))
    result = stats.permutation_test(
        samples,
        lambda b, a, axis: b.mean(axis) - a.mean(axis),
        vectorized=True,
        permutation_type="samples" if paired else "independent",
        n_resamples=_MOST_PERMUTATIONS,
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)


def over_examples(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Mean difference of values of the same examples: permutation test and bootstrap interval.

    The test exchanges the two values of random examples; the interval draws examples again
    (percentiles of their means, expanded for few examples: Hesterberg 2015). Both are drawn 10,000
    times, with a fixed seed.

    Raises:
      ValueError: there are no examples, or the numbers of values differ.
    """
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} and {len(second)} values are no pairs of the same examples")
    differences = np.subtract(second, first).astype(float)
    mean = float(differences.mean())
    number = len(differences)
    rng = np.random.default_rng(0)
    exchanged = np.empty(_RESAMPLES)  # means with the signs of random examples changed
    drawn = np.empty(_RESAMPLES)  # means of examples drawn again
    rows = max(1, _MOST_DRAWN // number)
    for start in range(0, _RESAMPLES, rows):
        chunk = slice(start, min(start + rows, _RESAMPLES))
        shape = (chunk.stop - chunk.start, number)
        exchanged[chunk] = (rng.integers(0, 2, shape, np.int8) * 2 - 1) @ differences / number
        drawn[chunk] = differences[rng.integers(0, number, shape, np.int32)].mean(1)
    tolerance = 1e-12 * max(abs(mean), 1e-300)
    extreme = int((np.abs(exchanged) >= abs(mean) - tolerance).sum())
    tail = expanded_tail(number)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    spread = deviation(differences.tolist())
    effect = mean / spread if spread else math.nan
    p = (extreme + 1) / (_RESAMPLES + 1)
    return Difference(
        mean, float(low), float(high), p, "paired permutation", effect, (number, number)
    )


def expanded_tail(number: int) -> float:
    """Share of resampled means outside each end of a bootstrap interval of a mean.

    Plain percentiles are too narrow for few values: they are those of a normal distribution with
    the deviation divided by n, where a t-interval divides by n - 1 and has the wider t-distribution
    (Hesterberg 2015).
    """
    if number < 2:
        return LEVEL / 2
    wider = math.sqrt(number / (number - 1)) * stats.t.isf(LEVEL / 2, number - 1)
    return float(stats.norm.sf(wider))


def hedges_g(first: Sequence[float], second: Sequence[float]) -> float:
    """Difference in units of the pooled deviation, corrected for small samples (Hedges 1981); NaN
    if the values of neither sample differ by more than rounding."""
    a = np.asarray(first, float)
    b = np.asarray(second, float)
    freedom = len(a) + len(b) - 2
    pooled = ((len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)) / freedom
    correction = 1 - 3 / (4 * freedom - 1)
    deviation = math.sqrt(pooled)
    if deviation <= 1e-12 * max(np.abs(a).max(), np.abs(b).max()):
        return math.nan
    return float(correction * (b.mean() - a.mean()) / deviation)


def holm(p_values: Sequence[float], family: int) -> list[float]:
    """Adjusted p-values of several tests (Holm 1979): below the level, the family of all tests has
    at most that share of false differences.

    Args:
      family: number of all tests; those that are not given count as the largest p-values.
    """
    order = np.argsort(p_values)
    factors = family - np.arange(len(order))
    adjusted = np.empty(len(order))
    # An adjusted p-value is never below that of a smaller one; fmin makes NaN, where rounding
    # leaves nothing to test, 1.
    adjusted[order] = np.maximum.accumulate(np.fmin(1, factors * np.sort(p_values)))
    return adjusted.tolist()


def seeds_to_decide(
    first: Sequence[float], second: Sequence[float], level: float = LEVEL, *, paired: bool = False
) -> int | None:
    """Seeds of each side with which a test would find a difference as large as the observed one,
    with a probability of 0.8; None if a thousand are too few. The test is two-sided.

    Args:
      paired: the test is one of the pairs.
    """
    a = np.asarray(first, float)
    b = np.asarray(second, float)
    if not np.isfinite([*a, *b]).all():  # a seed diverged
        return None
    variances = np.array([(b - a).var(ddof=1)] if paired else [a.var(ddof=1), b.var(ddof=1)])
    variance = variances.sum()
    distance = abs(b.mean() - a.mean())
    if not distance:
        return None
    # Of samples as large as each other, by Welch and Satterthwaite: 1 to 2 for each seed.
    freedom_of_seed = variance**2 / (variances**2).sum() if variance else 1.0
    is_permuted = not paired and (has_ties(a) or has_ties(b))
    for count in range(2, _MOST_SEEDS + 1):
        if is_permuted and 2 / math.comb(2 * count, count) >= level:
            continue  # no permutation of so few is as rare
        freedom = freedom_of_seed * (count - 1)
        shift = distance / math.sqrt(variance / count) if variance else math.inf
        limit = stats.t.isf(level / 2, freedom)
        # Power of the t-test: the share of a t-distribution around the shift beyond the limit.
        if not variance or stats.nct.sf(limit, freedom, shift) >= _POWER:
            return count
    return None


def finite(values: Sequence[float | None]) -> list[float]:
    """The values that are finite numbers: not NaN (it diverged) or None (it was not measured)."""
    return [value for value in values if value is not None and math.isfinite(value)]


def diverged(values: Sequence[float | None]) -> str:
    """ "1 of 3 diverged", if a value is NaN or infinite; else empty."""
    lost = sum(value is not None and not math.isfinite(value) for value in values)
    return f"{lost} of {len(values)} diverged" if lost else ""


def deviation(values: Sequence[float]) -> float:
    """Standard deviation of the sample; 0 for one value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
