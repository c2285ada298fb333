# SPDX-License-Identifier: Apache-2.0
"""False-positive rates and coverage of the project's tests, by simulation.

    python experiments/evidence_simulation.py --draws=10000

Each case draws samples without a difference, or with exactly the smallest difference of interest,
and tests them as `compare`, tables of sweeps and `claim` do. All draws of a case are computed at
once, in arrays; 50 draws of each case check that the functions of `transformer_jax.scoring` return
the same. Distributions have mean 0: "normal", "exponential" (skewed to the right), "-exponential"
(to the left), the difference of two exponentials (symmetric), "heavy tails" (t with two degrees of
freedom), values that tie (-1 or 1; -1, 0 or 1) and "some diverged" (normal, one in ten infinite).
"""

import argparse
import dataclasses
import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
from scipy import stats

from transformer_jax.scoring.sequential import (
    FAILS,
    HOLDS,
    HOLDS_SMALL,
    OPPOSITE,
    UNDECIDED,
    Plan,
    decide,
    interval_of_mean,
    interval_of_median,
)
from transformer_jax.scoring.statistics import (
    Difference,
    expanded_tail,
    holm,
    over_examples,
    over_paired_seeds,
    over_seeds,
    permutation_p,
)

LEVEL = 0.05
SEEDS = (3, 5, 8)
EXAMPLES = (20, 100)
VARIANTS = 5
PLANS = {
    "3, 5, 8, 12": Plan((3, 5, 8, 12), 1.0),
    "every one of 3 to 12": Plan((*range(3, 13),), 1.0),
}
CHECKED = 50
AT_ONCE = 500
"""Draws that are resampled at once."""

type Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
type Outcome = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of each draw: a p-value or whether the verdict is wrong, and the interval."""

DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "exponential": lambda rng, shape: rng.standard_exponential(shape) - 1,
}
FEW_VALUES: dict[str, Draw] = {
    "-1 or 1": lambda rng, shape: rng.choice([-1.0, 1.0], shape),
    "-1, 0 or 1": lambda rng, shape: rng.choice([-1.0, 0.0, 1.0], shape),
}


def _some_diverged(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """One in ten is infinite, on either side: one of the two rows diverged."""
    side = rng.choice([-np.inf, np.inf], shape)
    return np.where(rng.random(shape) < 0.1, side, rng.standard_normal(shape))


DIFFERENCES = DISTRIBUTIONS | {
    "-exponential": lambda rng, shape: 1 - rng.standard_exponential(shape),
    "of two exponentials": lambda rng, shape: rng.laplace(size=shape),
    "heavy tails": lambda rng, shape: rng.standard_t(2, shape),
}
"""Of two rows; equal rows have symmetric differences, whatever their distribution."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A test in a situation in which it should rarely decide.

    Attributes:
      test: name of the test, and of the wrong decision.
      drawn: distribution of the values.
      number: numbers of values.
      sample: draws the values, [draws, ...].
      test_all: tests all draws.
      test_one: tests one draw with the project's functions.
      truth: true difference.
      coverage: stated coverage of the interval; 0 if there is none.
    """

    test: str
    drawn: str
    number: str
    sample: Callable[[np.random.Generator, int], np.ndarray]
    test_all: Callable[[np.ndarray], Outcome]
    test_one: Callable[[np.ndarray], tuple[float, float, float]]
    truth: float = 0.0
    coverage: float = 0.0


def cases() -> Iterator[Case]:
    """All cases."""
    partial = functools.partial
    for (name, draw), number in itertools.product(DISTRIBUTIONS.items(), SEEDS):
        both = f"{number} and {number}"
        for ratio in (1, 3):
            drawn = f"{name}, deviations 1 and {ratio}"
            sample = partial(_two_samples, draw, number, ratio)
            yield Case("Welch", drawn, both, sample, *TESTS["Welch"], coverage=0.95)
        sample = partial(_two_samples, draw, number, 1)
        yield Case(PERMUTATION, name, both, sample, *TESTS[PERMUTATION])
        yield Case(HOLM, name, f"{number} each", partial(_rows, draw, number), *TESTS[HOLM])
    irregular = FEW_VALUES | {"some diverged": _some_diverged}
    for (name, draw), number in itertools.product(irregular.items(), SEEDS):
        sample = partial(_two_samples, draw, number, 1)
        yield Case("over seeds", name, f"{number} and {number}", sample, *TESTS["over seeds"])
    differences = {name: draw for name, draw in DIFFERENCES.items() if name != "-exponential"}
    for test, numbers, unit in (
        ("paired t", SEEDS, " pairs"),
        ("paired permutation", EXAMPLES, ""),
    ):
        for (name, draw), number in itertools.product(differences.items(), numbers):
            drawn = f"differences {name}"
            sample = partial(_sample, draw, number)
            yield Case(test, drawn, f"{number}{unit}", sample, *TESTS[test], coverage=0.95)
    differences = DIFFERENCES | irregular
    for (looks, plan), (name, draw) in itertools.product(PLANS.items(), differences.items()):
        for wrong, truth in ((HOLDS, 0.0), (FAILS, plan.smallest)):
            sample = partial(_sample, draw, plan.looks[-1], truth=truth)
            tests = (partial(test, plan, wrong) for test in (_claims, _claim_once))
            where = "no difference" if wrong == HOLDS else "the smallest difference"
            test = f'claim, "{wrong}" at {where}'
            yield Case(test, f"differences {name}", looks, sample, *tests, truth, coverage=0.90)


def _sample(
    draw: Draw, number: int, rng: np.random.Generator, draws: int, *, truth: float = 0.0
) -> np.ndarray:
    return draw(rng, (draws, number)) + truth


def _two_samples(
    draw: Draw, number: int, ratio: float, rng: np.random.Generator, draws: int
) -> np.ndarray:
    return draw(rng, (draws, 2, number)) * np.array([1, ratio])[:, None]


def _rows(draw: Draw, number: int, rng: np.random.Generator, draws: int) -> np.ndarray:
    return draw(rng, (draws, 1 + VARIANTS, number))


def _welch(values: np.ndarray) -> Outcome:
    """Welch's test of the samples [..., 0, :] and [..., 1, :]."""
    number = values.shape[-1]
    errors = values.var(-1, ddof=1) / number
    freedom = errors.sum(-1) ** 2 / ((errors**2) / (number - 1)).sum(-1)
    error, mean = np.sqrt(errors.sum(-1)), values[..., 1, :].mean(-1) - values[..., 0, :].mean(-1)
    half = stats.t.isf(LEVEL / 2, freedom) * error
    return 2 * stats.t.sf(np.abs(mean) / error, freedom), mean - half, mean + half


def _over_seeds(values: np.ndarray) -> Outcome:
    """Welch's test, of samples that tie the permutation test, of infinite values that of ranks."""
    flat = values.reshape(len(values), -1)
    is_infinite = ~np.isfinite(flat).all(1)
    ranks = stats.rankdata(flat, axis=1).reshape(values.shape)
    permuted = _permutation(np.where(is_infinite[:, None, None], ranks, values))[0]
    with np.errstate(invalid="ignore", divide="ignore"):
        p = np.where(is_infinite | _ties(values).any(1), permuted, _welch(values)[0])
    return _without_interval(p)


def _ties(values: np.ndarray) -> np.ndarray:
    """Whether at most two thirds of the values along the last axis differ from each other."""
    with np.errstate(invalid="ignore"):
        num_distinct = 1 + (np.diff(np.sort(values), axis=-1) > 0).sum(-1)
    return 3 * num_distinct <= 2 * values.shape[-1]


def _permutation(values: np.ndarray) -> Outcome:
    number = values.shape[-1]
    flat = values.reshape(len(values), -1)
    chosen = np.array(
        [[i in some for i in range(2 * number)] for some in _divisions(2 * number, number)], float
    )
    p = []
    for some in _blocks(flat):
        sums, tolerance = some @ chosen.T, 1e-12 * np.abs(some).sum(1, keepdims=True)
        tails = (sums <= sums[:, :1] + tolerance), (sums >= sums[:, :1] - tolerance)
        p.append(2 * np.minimum(*(tail.mean(1) for tail in tails)))
    return _without_interval(np.minimum(1, np.concatenate(p)))


@functools.cache
def _divisions(total: int, number: int) -> list[frozenset[int]]:
    return [*map(frozenset, itertools.combinations(range(total), number))]


def _paired_t(values: np.ndarray) -> Outcome:
    p = stats.ttest_1samp(values, 0.0, axis=1).pvalue
    return p, *interval_of_mean(values, LEVEL / 2)


def _family(values: np.ndarray) -> Outcome:
    pairs = (values[:, [0, row]] for row in range(1, 1 + VARIANTS))
    smallest = np.min([_welch(pair)[0] for pair in pairs], axis=0)
    return _without_interval(np.minimum(1, VARIANTS * smallest))


def _family_once(values: np.ndarray) -> tuple[float, float, float]:
    base, *others = values.tolist()
    p_values = [over_seeds(base, one).p for one in others]
    return _p_alone(min(holm(p_values, len(others))))


def _pairs(values: np.ndarray) -> Outcome:
    """`over_examples` has a fixed seed, so that its resamples are the same in all draws."""
    number, resamples, rng = values.shape[1], 10_000, np.random.default_rng(0)
    signs = rng.integers(0, 2, (resamples, number), np.int8) * 2.0 - 1
    drawn = rng.integers(0, number, (resamples, number), np.int32)
    counts = np.stack([(drawn == example).sum(1) for example in range(number)], 1).astype(float)
    found, tail = [], expanded_tail(number)
    for some in _blocks(values):
        limit = np.abs(some.mean(1, keepdims=True)) * (1 - 1e-12)
        extreme = (np.abs(some @ signs.T) / number >= limit).sum(1)
        ends = np.quantile(some @ counts.T / number, [tail, 1 - tail], axis=1)
        found.append([(extreme + 1) / (resamples + 1), *ends])
    p, low, high = np.concatenate(found, axis=1)
    return p, low, high


def _with_interval(difference: Difference) -> tuple[float, float, float]:
    return difference.p, difference.low, difference.high


def _p_alone(p: float) -> tuple[float, float, float]:
    return p, math.nan, math.nan


PERMUTATION = "permutation over seeds"
HOLM = f"Holm, any of {VARIANTS} rows"
TESTS = {
    "Welch": (_welch, lambda x: _with_interval(over_seeds(*x.tolist()))),
    PERMUTATION: (_permutation, lambda x: _p_alone(permutation_p(*x.tolist()))),
    HOLM: (_family, _family_once),
    "over seeds": (_over_seeds, lambda x: _p_alone(over_seeds(*x.tolist()).p)),
    "paired t": (
        _paired_t,
        lambda x: _with_interval(over_paired_seeds([0.0] * len(x), x.tolist())),
    ),
    "paired permutation": (
        _pairs,
        lambda x: _with_interval(over_examples([0.0] * len(x), x.tolist())),
    ),
}
"""Each test of all draws, and of one draw with the project's functions."""


def _claims(plan: Plan, wrong: str, values: np.ndarray) -> Outcome:
    """Is 0 where the verdict is `wrong`, else 1; the interval of the look that decides."""
    is_open = np.ones(len(values), bool)
    results = np.ones((3, len(values)))
    for count in plan.looks:
        low, high = _intervals(plan, values[:, :count])
        holds = low > 0
        fails = ~holds & (high < plan.smallest)
        is_wrong = holds if wrong == HOLDS else fails
        results[:, is_open] = np.array([np.where(is_wrong, 0, 1), low, high])[:, is_open]
        is_open &= ~(fails | holds)
    return results[0], results[1], results[2]


def _intervals(plan: Plan, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Intervals of `decide` at one look, of each draw."""
    count = values.shape[1]
    with np.errstate(invalid="ignore"):
        half = stats.t.isf(plan.level, count - 1) * values.std(1, ddof=1) / math.sqrt(count)
        ends = np.array([values.mean(1) - half, values.mean(1) + half])
        by_signs = ~np.isfinite(values).all(1) | _ties(values)
    level = plan.error_rate / len(plan.looks)
    for index in np.flatnonzero(by_signs):
        ends[:, index] = interval_of_median(values[index], level)
    return ends[0], ends[1]


def _claim_once(plan: Plan, wrong: str, values: np.ndarray) -> tuple[float, float, float]:
    for count in plan.looks:
        look = decide(values[:count].tolist(), plan)
        if look.verdict != UNDECIDED:
            break
    verdicts = (HOLDS, HOLDS_SMALL) if wrong == HOLDS else (FAILS, OPPOSITE)
    return float(look.verdict not in verdicts), look.low, look.high


def _blocks(values: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(values), AT_ONCE):
        yield values[start : start + AT_ONCE]


def _without_interval(p: np.ndarray) -> Outcome:
    return p, np.full(len(p), math.nan), np.full(len(p), math.nan)


def estimate(case: Case, draws: int) -> tuple[float, float]:
    """Share of wrong decisions, and of intervals that hold the true value (NaN: no interval).

    Raises:
      AssertionError: the project's functions return something else for some draws.
    """
    values = case.sample(np.random.default_rng(0), draws)
    p, low, high = case.test_all(values)
    for index in range(min(CHECKED, draws)):
        once = case.test_one(values[index])
        np.testing.assert_allclose((p[index], low[index], high[index]), once, rtol=1e-7)
    covered = ((low <= case.truth) & (case.truth <= high)).mean() if case.coverage else math.nan
    return float((p < LEVEL).mean()), float(covered)


def exceeds(share: float, stated: float, draws: int) -> bool:
    """Returns True if a share is above the stated one by more than three deviations."""
    return share > stated + 3 * math.sqrt(stated * (1 - stated) / draws)


def line(case: Case, draws: int) -> str:
    """Row of the table."""
    wrong, covered = estimate(case, draws)
    rate, interval = f"{wrong:.4f}", f"{covered:.4f} ({case.coverage})" if case.coverage else ""
    if exceeds(wrong, LEVEL, draws):
        rate += " **above**"
    if case.coverage and exceeds(1 - covered, 1 - case.coverage, draws):
        interval += " **below**"
    return f"| {' | '.join((case.test, case.drawn, case.number, rate, interval))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10_000)
    draws = parser.parse_args().draws
    head = ("test", "values", "number", f"wrong (stated: {LEVEL})", "coverage (stated)")
    print(f"| {' | '.join(head)} |\n{'| --- ' * len(head)}|", flush=True)
    for number, case in enumerate(cases(), 1):
        print(line(case, draws), flush=True)
        print(f"case {number}, {time.process_time():.0f} s of CPU", file=sys.stderr)


if __name__ == "__main__":
    main()
