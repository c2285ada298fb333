# SPDX-License-Identifier: Apache-2.0
"""Outcomes of oracles: comparisons of arrays, and the table of all of them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.errors import UserError
from transformer_jax.runs import user_modules
from transformer_jax.summary import Summarized, aligned

EQUAL = "equal"
DIFFERS = "differs"
DOES_NOT_APPLY = "does not apply"
NOT_RUN = "not run"

FLOAT32 = 1e-4
"""Largest relative difference of float32 results that are computed in another order."""
BITS = 0.0
"""Largest difference of results that must be equal bit for bit."""

_TINY = float(np.finfo(np.float32).tiny)
_SMALL = 1e-3  # an array counts as at least this large, relative to the largest of its tree


class DoesNotApplyError(Exception):
    """The equality has no meaning for this component or config; the message says why."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The difference of two results that must be equal.

    Attributes:
      absolute: the largest absolute difference.
      relative: the largest difference, relative to the largest element of its array.
      where: where the results differ first, or differ most.
      tolerance: the largest relative difference that counts as equal.
    """

    absolute: float
    relative: float
    where: str
    tolerance: float

    @property
    def is_equal(self) -> bool:
        """Returns True if no array differs by more than the tolerance. A NaN never does."""
        return self.relative <= self.tolerance

    @classmethod
    def of_trees(cls, computed: Any, expected: Any, tolerance: float = FLOAT32) -> "Comparison":
        """Compares two trees of arrays; `where` is the path that differs most."""
        leaves = {name: np.asarray(leaf) for name, leaf in named_leaves(computed).items()}
        arrays = {name: np.asarray(leaf) for name, leaf in named_leaves(expected).items()}
        if [leaf.shape for leaf in leaves.values()] != [array.shape for array in arrays.values()]:
            return cls(np.inf, np.inf, "in the shapes of the arrays", tolerance)
        # Without a floor, rounding errors of a gradient that should be 0 would count.
        floor = _SMALL * max(map(_size, arrays.values()), default=0.0)
        worst = cls(0.0, 0.0, "", tolerance)
        for name, leaf in zip(arrays, leaves.values(), strict=True):
            absolute, relative = _difference(leaf, arrays[name], floor)
            if relative > worst.relative:
                worst = cls(absolute, relative, f"most in {name}", tolerance)
        return worst

    @classmethod
    def of_places(
        cls,
        computed: np.ndarray,
        expected: np.ndarray,
        place: Callable[[int], str],
        tolerance: float = FLOAT32,
    ) -> "Comparison":
        """Compares arrays [N, ...] of N places, such as tokens; `where` is the first that differs.

        Args:
          place: describes a place by its index.
        """
        if computed.shape != expected.shape:
            return cls(np.inf, np.inf, "in the number of predictions", tolerance)
        if not len(expected):
            raise DoesNotApplyError("nothing is predicted")
        size = _size(expected)
        differences = [_difference(*pair, size) for pair in zip(computed, expected, strict=True)]
        worst = max(differences, key=lambda difference: difference[1])
        for i, (_, relative) in enumerate(differences):
            if relative > tolerance:
                return cls(*worst, f"first at {place(i)}", tolerance)
        return cls(*worst, "", tolerance)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of one oracle.

    Attributes:
      oracle: its name, such as "packed = padded".
      verdict: "equal", "differs", "does not apply" or "not run".
      reason: why it does not apply, or was not run.
      absolute, relative, where, tolerance: those of the comparison, if there was one.
    """

    oracle: str
    verdict: str
    reason: str = ""
    absolute: float | None = None
    relative: float | None = None
    where: str | None = None
    tolerance: float | None = None

    def describe(self) -> str:
        """The verdict in one line."""
        if self.verdict == EQUAL:
            exact = self.tolerance == BITS
            return "bit for bit" if exact else f"relative difference {self.relative:.1e}"
        if self.verdict != DIFFERS:
            return self.reason
        return (
            f"by {self.absolute:.2e}, relative {self.relative:.2e} "
            f"(tolerance {self.tolerance:g}), {self.where}"
        )


def run_oracle(oracle: str, compare: Callable[[], Comparison]) -> Outcome:
    """Runs one oracle. An error in it is an outcome, too: "not run", never "equal"."""
    try:
        comparison = compare()
    except DoesNotApplyError as error:
        return Outcome(oracle, DOES_NOT_APPLY, str(error))
    except Exception as error:
        if isinstance(error, UserError) and not user_modules.is_modules_fault(error):
            return Outcome(oracle, DOES_NOT_APPLY, str(error))  # the package cannot do it
        reason = user_modules.describe_module_error(error) or user_modules.describe_error(error)
        return Outcome(oracle, NOT_RUN, reason)
    verdict = EQUAL if comparison.is_equal else DIFFERS
    return Outcome(oracle, verdict, "", **dataclasses.asdict(comparison))


def _difference(array: np.ndarray, expected: np.ndarray, floor: float) -> tuple[float, float]:
    """Absolute and relative difference of two arrays; infinite if one of them is not finite."""
    size = _size(expected)
    if not np.isfinite(_size(array) + size):
        return np.inf, np.inf
    absolute = _size(array.astype(np.float64) - expected.astype(np.float64))
    return absolute, absolute / max(size, floor, _TINY)


def _size(array: np.ndarray) -> float:
    """The largest absolute value; NaN if any is NaN."""
    return float(np.abs(array.astype(np.float64)).max(initial=0.0))


@dataclasses.dataclass(frozen=True, repr=False)
class Verification(Summarized):
    """The outcomes of all oracles.

    Attributes:
      subject: the component and config, in words.
      outcomes: one for each oracle.
    """

    subject: str
    outcomes: Sequence[Outcome]

    @property
    def failing(self) -> list[Outcome]:
        """The outcomes of oracles that differ or were not run."""
        return [outcome for outcome in self.outcomes if outcome.verdict in (DIFFERS, NOT_RUN)]

    @property
    def is_proven(self) -> bool:
        """Returns True if every oracle holds or does not apply."""
        return not self.failing

    def __getitem__(self, oracle: str) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.oracle == oracle)

    def table(self) -> str:
        """The outcomes, one a line, and their number by verdict."""
        rows = [(outcome.oracle, outcome.verdict, outcome.describe()) for outcome in self.outcomes]
        verdicts = [outcome.verdict for outcome in self.outcomes]
        counts = ", ".join(
            f"{verdicts.count(verdict)} {verdict}"
            for verdict in (EQUAL, DIFFERS, DOES_NOT_APPLY, NOT_RUN)
            if verdict in verdicts
        )
        return "\n".join([*aligned(rows, str.ljust), f"{self.subject}: {counts}"])

    def summary(self) -> Mapping[str, Any]:
        """Each oracle with its verdict."""
        return {
            outcome.oracle: f"{outcome.verdict}: {outcome.describe()}".rstrip(": ")
            for outcome in self.outcomes
        }

    def as_dict(self) -> dict[str, Any]:
        """The outcomes for JSON."""
        outcomes = [dataclasses.asdict(outcome) for outcome in self.outcomes]
        return {"subject": self.subject, "proven": self.is_proven, "outcomes": outcomes}
