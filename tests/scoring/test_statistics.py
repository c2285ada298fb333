# SPDX-License-Identifier: Apache-2.0
"""Tests of differences: against formulas, by enumeration, and on drawn data."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from transformer_jax.scoring import statistics

A = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4]
B = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.5, 24.8]


def two_sided_p(t, freedom):
    """Integral of Student's density beyond |t|."""
    x = np.linspace(-abs(t), abs(t), 20_001)
    density = (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    inside = scale / math.sqrt(math.pi * freedom) * density
    return 1 - float(((inside[1:] + inside[:-1]) / 2).sum() * (x[1] - x[0]))


def test_welch_is_its_formula():
    found = statistics.over_seeds(A, B)
    a, b = np.array(A), np.array(B)
    errors = np.array([a.var(ddof=1), b.var(ddof=1)]) / 15
    freedom = errors.sum() ** 2 / (errors**2 / 14).sum()
    t = (b.mean() - a.mean()) / math.sqrt(errors.sum())
    assert found.mean == pytest.approx(b.mean() - a.mean())
    assert found.p == pytest.approx(two_sided_p(t, freedom), abs=1e-6) and found.is_significant
    quantile = (found.high - found.mean) / math.sqrt(errors.sum())
    assert two_sided_p(quantile, freedom) == pytest.approx(0.05, abs=1e-6)
    assert found.high - found.mean == pytest.approx(found.mean - found.low)


def test_hedges_g_is_the_corrected_difference_in_deviations():
    a, b = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])
    pooled = math.sqrt((2 * a.var(ddof=1) + 2 * b.var(ddof=1)) / 4)
    assert statistics.hedges_g(a, b) == pytest.approx(2 / pooled * (1 - 3 / 15))
    assert math.isnan(statistics.hedges_g([0.1] * 3, [0.3] * 3))  # their deviation is rounding


def test_few_seeds_are_permuted_exactly():
    first, second = [1.0, 2.5, 3.0, 2.0], [2.8, 4.0, 3.5]
    observed, values = abs(np.mean(second) - np.mean(first)), np.array([*first, *second])
    groups = [np.isin(np.arange(7), chosen) for chosen in itertools.combinations(range(7), 3)]
    gaps = [abs(values[group].mean() - values[~group].mean()) for group in groups]
    extreme = np.array(gaps) >= observed - 1e-12
    assert statistics.permutation_p(first, second) == pytest.approx(extreme.mean(), abs=0.03)
    assert statistics.permutation_p([1, 2, 3], [11, 12, 13]) == pytest.approx(0.1)


def test_seeds_that_do_not_vary_are_permuted():
    found = statistics.over_seeds([0.1, 0.1, 0.1], [0.3, 0.3, 0.3])  # the deviation is 1e-17
    assert (found.p, found.test) == (pytest.approx(0.1), "permutation")
    assert (found.low, found.high) == (-math.inf, math.inf)  # three of each decide nothing
    assert statistics.over_seeds([1.0, 1.0], [1.0, 1.0]).p == 1


def test_few_values_have_an_interval_of_shifts():
    first, second = [0.0, 0.0, 1.0, 0.0, 1.0], [3.0, 2.0, 3.0, 2.0, 3.0]
    found = statistics.over_seeds(first, second)
    assert found.test == "permutation" and found.p < 0.05
    assert 1 < found.low < 2.2 < found.high < 4
    for shift, is_rejected in ((found.low - 0.01, True), (found.low + 0.01, False)):
        moved = [value + shift for value in first]
        assert (statistics.permutation_p(moved, second) < 0.05) == is_rejected


def test_what_the_same_seeds_share_is_not_noise():
    first = [1.0, 2.0, 3.0, 4.0, 5.0]
    second = [1.1, 2.3, 3.2, 4.4, 5.25]
    values = {"base": first, "variant": second}
    (test,) = statistics.compare_seeds("loss", values, ["base", "variant"])
    expected = stats.ttest_rel(second, first)
    interval = expected.confidence_interval()
    assert test.difference.test == "paired t" and test.difference.p == pytest.approx(
        expected.pvalue
    )
    assert (test.difference.low, test.difference.high) == pytest.approx(tuple(interval))
    assert test.p_permutation == 2 / 2**5
    # The power of the t-test of pairs reaches 0.8 with as many as it says.
    deviation = np.std(np.subtract(second, first), ddof=1)
    count = statistics.seeds_to_decide(first, second, paired=True)
    powers = [
        stats.nct.sf(stats.t.isf(0.025, n - 1), n - 1, 0.25 / deviation * math.sqrt(n))
        for n in (count - 1, count)
    ]
    assert powers[0] < 0.8 <= powers[1]
    (test,) = statistics.compare_seeds("loss", values)
    assert test.difference.test == "Welch" and not test.differs
    # Equal differences have no deviation.
    tied = statistics.over_paired_seeds(first, [value + 0.1 for value in first])
    assert tied == statistics.over_seeds(first, [value + 0.1 for value in first])


def test_seeds_that_diverged_are_the_worst():
    """Survivors alone would be lower."""
    values = {"base": [3.0, 3.1, 3.2, 3.3], "variant": [2.0, 2.1, math.nan, math.nan]}
    (test,) = statistics.compare_seeds("loss", values)
    assert test.difference.test == "rank permutation" and test.p_adjusted > 0.5
    assert test.seeds_to_decide is None and not test.differs
    (test,) = statistics.compare_seeds("bleu", values)
    assert test.differs  # all four are lower than every score of the base
    assert test.difference.mean == -math.inf


def test_holm_multiplies_by_the_tests_that_are_left():
    assert statistics.holm([0.01, 0.04, 0.03, 0.5], 4) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert statistics.holm([0.9, 0.8], 2) == [1.0, 1.0]
    assert statistics.holm([0.01, 0.03], 10) == pytest.approx([0.1, 0.27])
    assert statistics.holm([math.nan, 0.01], 2) == [1.0, 0.02]  # a test that decides nothing


def test_pairs_are_exchanged_exactly_often_enough():
    first, second = [3.0, 1.0, 2.0, 5.0, 4.0, 2.0], [4.0, 1.5, 1.0, 7.0, 6.0, 4.0]
    differences = np.subtract(second, first)
    signs = np.array(list(itertools.product((-1, 1), repeat=6)))
    means = np.abs((signs * differences).mean(1))
    exact = np.mean(means >= abs(differences.mean()) - 1e-12)
    test = statistics.over_examples(first, second)
    assert test.p == pytest.approx(exact, abs=0.015)
    assert test.mean == pytest.approx(differences.mean())
    assert test.effect == pytest.approx(differences.mean() / differences.std(ddof=1))


def test_the_interval_over_examples_is_that_of_the_mean():
    differences = np.random.default_rng(0).normal(0.2, 1, 400)
    test = statistics.over_examples([0.0] * 400, differences.tolist())
    half = 1.96 * differences.std(ddof=1) / 20
    ends = (differences.mean() - half, differences.mean() + half)
    assert (test.low, test.high) == pytest.approx(ends, abs=0.02)


@pytest.mark.parametrize("deviations", [(1.0, 1.0), (1.0, 3.0)])
def test_equal_models_differ_as_rarely_as_stated(deviations):
    """False differences among drawn equal samples of five seeds, and coverage of the interval."""
    rng = np.random.default_rng(1)
    draws = 400
    tests = [
        statistics.over_seeds(*(rng.normal(0, deviation, 5).tolist() for deviation in deviations))
        for _ in range(draws)
    ]
    rejected = sum(test.is_significant for test in tests)
    covered = sum(test.low <= 0 <= test.high for test in tests)
    deviation = math.sqrt(0.05 * 0.95 / draws)
    assert rejected / draws < 0.05 + 3 * deviation
    assert covered == draws - rejected


def test_the_stated_seeds_decide_in_four_of_five_cases():
    first, second = [0.0, 1.0, -1.0, 0.5, -0.5], [1.5, 0.5, 2.5, 2.0, 1.0]
    count = statistics.seeds_to_decide(first, second)
    assert count is not None
    rng = np.random.default_rng(0)

    def draw(seeds):
        return rng.normal(np.mean(seeds), np.std(seeds, ddof=1), count).tolist()

    found = [statistics.over_seeds(draw(first), draw(second)).is_significant for _ in range(400)]
    assert np.mean(found) > 0.74
    assert statistics.seeds_to_decide([1.0, 2.0], [1.0, 2.0]) is None


@pytest.mark.parametrize(
    "first, second",
    [
        ([100.0, 100.0, 100.0], [90.0, 90.0, 90.0]),  # 2 / binomial(6, 3) is 0.1
        ([1.0, 1.001, 0.999], [1.4, 2.0, 1.7]),  # about two degrees of freedom, not four
    ],
)
def test_more_seeds_would_decide_than_have_not_decided(first, second):
    (test,) = statistics.compare_seeds("accuracy", {"base": first, "variant": second})
    assert not test.differs and test.seeds_to_decide > 3
