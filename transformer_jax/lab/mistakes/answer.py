# SPDX-License-Identifier: Apache-2.0
"""Answers of the checks, and how outputs of a user's function are told apart."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.errors import escape_controls
from transformer_jax.lab.mistakes.table import MISTAKES, Mistake

TOLERANCE = 2e-4
"""Largest difference of equal outputs, relative to the largest element: float32, other order."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """A mistake with its evidence.

    Attributes:
      mistake: the row of the table.
      evidence: the numbers that prove it.
    """

    mistake: Mistake
    evidence: str

    @property
    def name(self) -> str:
        """Name of the mistake, as in docs/mistakes.md."""
        return self.mistake.name


@dataclasses.dataclass(frozen=True, repr=False)
class Answer:
    """What a check says of a function; prints itself.

    Attributes:
      check: such as "check_attention".
      right: the function equals the reference.
      layout: the one in which it is right, or was compared.
      mistakes: those found, with evidence.
      warnings: what goes wrong only for unusual inputs, with evidence.
      evidence: the difference from the reference, and what was seen of an unknown mistake.
    """

    check: str
    right: bool
    layout: str
    mistakes: Sequence[Finding] = ()
    warnings: Sequence[Finding] = ()
    evidence: str = ""

    def __repr__(self) -> str:
        if self.right:
            lines = [f"{self.check}: right, in this layout: {self.layout}", f"  {self.evidence}"]
        elif self.mistakes:
            names = ", ".join(finding.name for finding in self.mistakes)
            lines = [f"{self.check}: {names} (layout: {self.layout})"]
        else:
            lines = [f"{self.check}: wrong, by no known mistake (layout: {self.layout})"]
            lines += [f"  {self.evidence}"]
        for finding in [*self.mistakes, *self.warnings]:
            mistake = finding.mistake
            lines += [
                f"  {mistake.name}: {mistake.title}",
                f"    evidence  {finding.evidence}",
                f"    change    {mistake.change}",
                f"    source    {mistake.source}",
            ]
        return escape_controls("\n".join(lines))


def difference(output: np.ndarray, reference: np.ndarray) -> float:
    """Largest difference relative to the largest element; a NaN of the reference claims nothing."""
    claimed = np.isfinite(reference)
    if output.shape != reference.shape or 2 * claimed.sum() < claimed.size:
        return float("inf")
    if not np.isfinite(output[claimed]).all():
        return float("inf")
    largest = np.abs(reference[claimed]).max() + 1e-30
    return float(np.abs(output[claimed] - reference[claimed]).max() / largest)


def found(name: str, evidence: str) -> Finding:
    """The mistake of this name with its evidence."""
    return Finding(MISTAKES[name], evidence)


type Trial = tuple[str, np.ndarray, Callable[..., np.ndarray], Mapping[str, Any]]
"""A layout, the output in it, the reference, and the options of the reference in this layout."""


def diagnose(check: str, about: str, trials: Iterable[Trial]) -> Answer:
    """The answer for outputs in several layouts: right in one, else the mistakes that explain it.

    One mistake is preferred to two, and earlier layouts to later ones.
    """
    kept = []
    for layout, output, reference, options in trials:
        distance = difference(output, reference(**options))
        if distance <= TOLERANCE:
            evidence = f"the difference from the reference is {distance:.1e}"
            return Answer(check, True, layout, evidence=evidence)
        kept.append((distance, layout, output, reference, options))
    singles = [(m, wrong) for m in MISTAKES.values() if m.about == about for wrong in m.wrong]
    pairs: list[tuple[tuple[Mistake, Mapping[str, Any]], ...]] = [
        pair
        for pair in itertools.combinations(singles, 2)
        if not pair[0][1].keys() & pair[1][1].keys() and pair[0][0] is not pair[1][0]
    ]
    alone: list[tuple[tuple[Mistake, Mapping[str, Any]], ...]] = [(single,) for single in singles]
    for group in (alone, pairs):
        for (distance, layout, output, reference, options), mistakes in itertools.product(
            kept, group
        ):
            changed = dict(options)
            for _, wrong in mistakes:
                changed |= wrong
            try:
                with np.errstate(all="ignore"):
                    remaining = difference(output, reference(**changed))
            except ValueError:  # these options have no meaning for these shapes
                continue
            if remaining <= TOLERANCE:
                apart = f"by {distance:.2g}" if np.isfinite(distance) else "in its shape or by NaN"
                evidence = (
                    f"differs {apart} from the right result, by {remaining:.1e} from this one"
                )
                findings = [Finding(mistake, evidence) for mistake, _ in mistakes]
                return Answer(check, False, layout, findings)
    distance, layout, *_ = min(kept, key=lambda row: row[0])
    evidence = f"the smallest difference from the reference is {distance:.2g}"
    return Answer(check, False, layout, evidence=evidence)
