# SPDX-License-Identifier: Apache-2.0
"""Statements of a paper about the rows of a table, decided on rows of one's own.

A statement is one or more comparisons of two cells, each expected to be lower, higher or nearly
equal. It holds if all of them are found, and does not hold if one of them is contradicted.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.scoring.sequential import FAILS, HOLDS, UNDECIDED
from transformer_jax.scoring.statistics import SeedTest, compare_seeds

type Values = Mapping[str, Mapping[str, Sequence[float]]]
"""Row -> metric -> value of each seed; one value if it is exact."""

LOWER = "lower"
HIGHER = "higher"
EQUAL = "equal"


class Comparison(NamedTuple):
    """Comparison of a cell with another one, usually of the base row.

    Attributes:
      row, base: names of rows.
      metric: column of both cells.
      expected: "lower", "higher" or "equal": the value of `row` relative to that of `base`.
      base_metric: column of the base's cell, if it is another one.
    """

    row: str
    base: str
    metric: str
    expected: str
    base_metric: str = ""

    @property
    def cell(self) -> str:
        """Name of the compared cell."""
        return f"{self.row}, {self.metric}"

    @property
    def base_cell(self) -> str:
        """Name of the cell that it is compared with."""
        return f"{self.base}, {self.base_metric or self.metric}"


class Outcome(NamedTuple):
    """Outcome of a comparison.

    Attributes:
      comparison: the comparison.
      verdict: "holds", "does not hold" or "undecided".
      difference: mean of the cell minus that of the base's; None if a value is missing.
      low, high: 95% interval of the difference; None if the values are exact, or missing.
      p_adjusted: p-value of "there is no difference", adjusted for all comparisons with the same
        base (Holm 1979); None as the interval.
      seeds_to_decide: seeds of each row that would decide it.
      share: difference divided by the base's mean.
    """

    comparison: Comparison
    verdict: str
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_adjusted: float | None = None
    seeds_to_decide: int | None = None
    share: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The outcome as JSON values."""
        return self.comparison._asdict() | {
            name: value for name, value in self._asdict().items() if name != "comparison"
        }

    def line(self) -> str:
        """One line: what is compared, the difference, and the verdict."""
        comparison = self.comparison
        expected = f"{comparison.expected} than"
        if comparison.expected == EQUAL:
            expected = "nearly equal to"
        line = f"{comparison.cell}: {expected} {comparison.base_cell}"
        if self.difference is None:
            return f"{line}: {self.verdict}, a row has too few values"
        line += f"? {self.difference:+.4g}"
        if self.low is not None and self.high is not None:
            line += f" [{self.low:.4g}, {self.high:.4g}], adjusted p = {self.p_adjusted:.2g}"
        elif self.share is not None:
            line += f" ({self.share:+.1%})"
        needed = self.seeds_to_decide if self.verdict == UNDECIDED else None
        more = f"; about {needed} seeds each would decide" if needed else ""
        return f"{line}: {self.verdict}{more}"


class Decided(NamedTuple):
    """A statement, its verdict, and the outcomes of its comparisons."""

    text: str
    verdict: str
    outcomes: Sequence[Outcome]

    def as_json(self) -> dict[str, Any]:
        """The statement as JSON values."""
        outcomes = [outcome.as_json() for outcome in self.outcomes]
        return {"statement": self.text, "verdict": self.verdict, "comparisons": outcomes}


def decide_statements(
    statements: Mapping[str, Sequence[Comparison]], values: Values, margin: float, *, exact: bool
) -> list[Decided]:
    """Decides each statement.

    Args:
      statements: text -> comparisons.
      values: of the rows.
      margin: share of the base's mean up to which a difference counts as nearly equal.
      exact: the values are computed, not measured over seeds; nothing is tested.
    """
    # A comparison of several statements is one test of its family.
    distinct = list(dict.fromkeys(itertools.chain(*statements.values())))
    tests = {} if exact else _tests(distinct, values)
    decided = []
    for text, comparisons in statements.items():
        outcomes = [
            _exactly(comparison, values, margin)
            if exact
            else _tested(comparison, values, margin, tests)
            for comparison in comparisons
        ]
        verdict = _verdict([outcome.verdict for outcome in outcomes])
        decided.append(Decided(text, verdict, outcomes))
    return decided


def _verdict(verdicts: Sequence[str]) -> str:
    if FAILS in verdicts:
        return FAILS
    return HOLDS if set(verdicts) == {HOLDS} else UNDECIDED


def _values(values: Values, comparison: Comparison) -> tuple[Sequence[float], Sequence[float]]:
    """Values of the base's cell and of the compared cell; empty where there are none."""
    base_metric = comparison.base_metric or comparison.metric
    base = values.get(comparison.base, {}).get(base_metric, ())
    return base, values.get(comparison.row, {}).get(comparison.metric, ())


def _tests(comparisons: Sequence[Comparison], values: Values) -> dict[tuple[str, str], SeedTest]:
    """Tests over seeds by the names of both cells.

    The tests with the same base are one family of Holm's correction.
    """
    families = defaultdict[str, dict[str, Sequence[float]]](dict)
    for comparison in comparisons:
        base, compared = _values(values, comparison)
        family = families[comparison.base_cell]
        family[comparison.base_cell] = base  # the first of each family: tests are against it
        family[comparison.cell] = compared
    return {
        (base_cell, test.name): test
        for base_cell, family in families.items()
        for test in compare_seeds(base_cell, family)
    }


def _tested(
    comparison: Comparison,
    values: Values,
    margin: float,
    tests: Mapping[tuple[str, str], SeedTest],
) -> Outcome:
    """Decides a comparison by its test; nearly equal is decided by the interval."""
    test = tests.get((comparison.base_cell, comparison.cell))
    if test is None:
        return Outcome(comparison, UNDECIDED)
    base, _ = _values(values, comparison)
    base_mean = float(sum(base)) / len(base)
    difference = test.difference
    if comparison.expected == EQUAL:
        most = margin * abs(base_mean)
        is_inside = -most <= difference.low and difference.high <= most
        is_outside = difference.low > most or difference.high < -most
        verdict = HOLDS if is_inside else FAILS if is_outside else UNDECIDED
    elif not test.differs:
        verdict = UNDECIDED
    else:
        is_lower = difference.mean < 0
        verdict = HOLDS if is_lower == (comparison.expected == LOWER) else FAILS
    return Outcome(
        comparison,
        verdict,
        difference=difference.mean,
        low=difference.low,
        high=difference.high,
        p_adjusted=test.p_adjusted,
        # That number would decide whether they differ, not whether they are nearly equal.
        seeds_to_decide=None if comparison.expected == EQUAL else test.seeds_to_decide,
        share=difference.mean / base_mean if base_mean else None,
    )


def _exactly(comparison: Comparison, values: Values, margin: float) -> Outcome:
    """Decides a comparison of two exact values."""
    base, compared = _values(values, comparison)
    if not base or not compared:
        return Outcome(comparison, UNDECIDED)
    difference = compared[0] - base[0]
    agrees = {
        LOWER: difference < 0,
        HIGHER: difference > 0,
        EQUAL: abs(difference) <= margin * abs(base[0]),
    }[comparison.expected]
    share = difference / base[0] if base[0] else None
    return Outcome(comparison, HOLDS if agrees else FAILS, difference, share=share)
