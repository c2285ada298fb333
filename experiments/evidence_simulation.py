# SPDX-License-Identifier: Apache-2.0
"""False-positive rates and coverage of the project's tests, by simulation.

    python experiments/evidence_simulation.py --draws=10000 > simulation.md

Each case draws samples without a difference, or with exactly the smallest difference of interest,
and passes them to the functions that `compare`, tables of sweeps and `claim` use. Distributions
have mean 0: "normal", "exponential" (skewed to the right), and "-exponential" (to the left).
"""

import argparse
import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from transformer_jax.scoring.sequential import FAILS, HOLDS, UNDECIDED, Decision, Plan, decide
from transformer_jax.scoring.statistics import holm, over_examples, over_seeds, permutation_p

LEVEL = 0.05
SEEDS = (3, 5, 8)
EXAMPLES = 20
VARIANTS = 5
PLANS = {
    "3, 5, 8, 12": Plan((3, 5, 8, 12), 1.0),
    "every one of 3 to 12": Plan((*range(3, 13),), 1.0),
}

type Draw = Callable[[np.random.Generator, int], np.ndarray]

DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda rng, number: rng.standard_normal(number),
    "exponential": lambda rng, number: rng.standard_exponential(number) - 1,
}
SKEWED = DISTRIBUTIONS | {"-exponential": lambda rng, number: 1 - rng.standard_exponential(number)}


class Outcome(NamedTuple):
    """Of one draw: whether the test is wrong, and whether the interval holds the true value."""

    is_wrong: bool
    is_covered: bool | None = None


class Case(NamedTuple):
    """A test in a situation in which it should rarely decide.

    Attributes:
      test: name of the test, and of the wrong decision.
      drawn: distribution of the values.
      number: numbers of values.
      coverage: stated coverage of the interval; 0 if it has none.
      outcome: draws once.
    """

    test: str
    drawn: str
    number: str
    coverage: float
    outcome: Callable[[np.random.Generator], Outcome]


def cases() -> Iterator[Case]:
    """All cases."""
    for (name, draw), number in itertools.product(DISTRIBUTIONS.items(), SEEDS):
        both = f"{number} and {number}"
        yield Case("Welch", name, both, 0.95, functools.partial(_welch, draw, number, 1))
        permutation = functools.partial(_permutation, draw, number)
        yield Case("permutation over seeds", name, both, 0, permutation)
    normal = DISTRIBUTIONS["normal"]
    for number in SEEDS:
        unequal = functools.partial(_welch, normal, number, 3)
        yield Case("Welch", "normal, deviations 1 and 3", f"{number} and {number}", 0.95, unequal)
    for name, draw in DISTRIBUTIONS.items():
        family = functools.partial(_family, draw, SEEDS[1])
        yield Case(f"Holm, any of {VARIANTS} rows", name, f"{SEEDS[1]} each", 0, family)
    for name, draw in DISTRIBUTIONS.items():
        pairs = functools.partial(_pairs, draw, EXAMPLES)
        yield Case("paired permutation", f"{name} differences", f"{EXAMPLES}", 0.95, pairs)
    yield from _sequential_cases()


def _sequential_cases() -> Iterator[Case]:
    sides = {name: (draw, None) for name, draw in SKEWED.items()}
    sides["both rows exponential"] = (DISTRIBUTIONS["exponential"],) * 2
    for looks, plan in PLANS.items():
        some = sides if plan is PLANS["3, 5, 8, 12"] else {"normal": sides["normal"]}
        for (name, (draw, other)), wrong in itertools.product(some.items(), (HOLDS, FAILS)):
            outcome = functools.partial(_sequential, draw, other, plan, wrong)
            at = "no difference" if wrong == HOLDS else "the smallest difference"
            yield Case(f'claim, "{wrong}" at {at}', name, looks, 0.90, outcome)


def _welch(draw: Draw, number: int, ratio: float, rng: np.random.Generator) -> Outcome:
    found = over_seeds(draw(rng, number).tolist(), (ratio * draw(rng, number)).tolist())
    return Outcome(found.is_significant, found.low <= 0 <= found.high)


def _permutation(draw: Draw, number: int, rng: np.random.Generator) -> Outcome:
    """Uses a faster form of `permutation_p`; one draw in a hundred checks that it is the same."""
    first, second = draw(rng, number), draw(rng, number)
    p = _exact_permutation(np.concatenate([first, second]), number)
    if rng.random() < 0.01:
        assert math.isclose(p, permutation_p(first.tolist(), second.tolist()))
    return Outcome(p < LEVEL)


def _exact_permutation(values: np.ndarray, number: int) -> float:
    sums = values[_divisions(len(values), number)].sum(1)
    tolerance = 1e-12 * np.abs(values).sum()
    tails = (sums <= sums[0] + tolerance).mean(), (sums >= sums[0] - tolerance).mean()
    return min(1.0, 2 * float(min(tails)))


@functools.cache
def _divisions(total: int, number: int) -> np.ndarray:
    return np.array([*itertools.combinations(range(total), number)])


def _family(draw: Draw, number: int, rng: np.random.Generator) -> Outcome:
    base = draw(rng, number).tolist()
    found = [over_seeds(base, draw(rng, number).tolist()).p for _ in range(VARIANTS)]
    return Outcome(min(holm(found)) < LEVEL)


def _pairs(draw: Draw, number: int, rng: np.random.Generator) -> Outcome:
    found = over_examples([0.0] * number, draw(rng, number).tolist())
    return Outcome(found.is_significant, found.low <= 0 <= found.high)


def _sequential(
    draw: Draw, other: Draw | None, plan: Plan, wrong: str, rng: np.random.Generator
) -> Outcome:
    truth = 0.0 if wrong == HOLDS else plan.smallest
    values = draw(rng, plan.looks[-1]) + truth
    if other is not None:
        values -= other(rng, len(values))
    found = _decided(values, plan)
    return Outcome(found.verdict == wrong, found.low <= truth <= found.high)


def _decided(values: np.ndarray, plan: Plan) -> Decision:
    for count in plan.looks:
        found = decide(values[:count].tolist(), plan)
        if found.verdict != UNDECIDED:
            break
    return found


def estimate(case: Case, draws: int) -> tuple[float, float | None]:
    """Share of wrong decisions, and of intervals that hold the true value (None: no interval)."""
    rng = np.random.default_rng(0)
    outcomes = [case.outcome(rng) for _ in range(draws)]
    wrong = float(np.mean([one.is_wrong for one in outcomes]))
    covered = float(np.mean([one.is_covered for one in outcomes])) if case.coverage else None
    return wrong, covered


def exceeds(share: float, stated: float, draws: int) -> bool:
    """Returns True if a share is above the stated one by more than three deviations."""
    return share > stated + 3 * math.sqrt(stated * (1 - stated) / draws)


def line(case: Case, draws: int) -> str:
    """Row of the table."""
    wrong, covered = estimate(case, draws)
    mark = " **above**" if exceeds(wrong, LEVEL, draws) else ""
    interval = "" if covered is None else f"{covered:.3f} ({case.coverage:.2f})"
    if covered is not None and exceeds(1 - covered, 1 - case.coverage, draws):
        interval += " **below**"
    cells = case.test, case.drawn, case.number, f"{draws:,}", f"{wrong:.4f}{mark}", interval
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10_000)
    draws = parser.parse_args().draws
    head = ("Test", "Values", "Number", "Draws", f"Wrong (stated {LEVEL})", "Coverage (stated)")
    print(f"| {' | '.join(head)} |\n{'| --- ' * len(head)}|", flush=True)
    start = time.perf_counter()
    for case in cases():
        print(line(case, draws), flush=True)
        print(f"{case.test}: {time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
