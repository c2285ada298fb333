# SPDX-License-Identifier: Apache-2.0
"""The table of mistakes, answers, and the diagnosis: which wrong reference an output equals.

A new mistake is a row of table.toml and, if its option is new, a line of the reference.
"""

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.errors import escape_controls
from transformer_jax.lab.mistakes.calls import Subject, Trial

TOLERANCE = 2e-4
"""Largest difference of equal outputs, relative to the largest element: float32, other order."""
TOLERANCE_OF_ONE = 1e-5
"""That of an output of one number, which many wrong references come close to."""


class Mistake(NamedTuple):
    """A row of table.toml.

    Attributes:
      about: part of the model whose reference it makes wrong.
      looks: what is seen in training or at test time.
      source: a paper, tutorial or thread that has the right form, or warns.
      wrong: options of the reference; several are variants. Without any, a property of the outputs
        shows the mistake.
    """

    about: str
    name: str
    title: str
    looks: str
    change: str
    source: str
    wrong: Sequence[Mapping[str, Any]]


_PARTS = tomllib.loads(Path(__file__).with_name("table.toml").read_text(encoding="utf-8"))
MISTAKES = {
    name: Mistake(about, name, *row) for about, rows in _PARTS.items() for name, row in rows.items()
}


class Finding(NamedTuple):
    """A mistake by its name in docs/mistakes.md, with the numbers that prove it."""

    name: str
    evidence: str


@dataclass(frozen=True, repr=False)
class Answer:
    """Result of a check of a function; prints itself.

    Attributes:
      check: such as "check_attention".
      layout: the one in which it is right, or was compared.
      mistakes: those found, with evidence.
      right: the function equals the reference.
      evidence: the difference from the reference.
      trial: the inputs, output and reference that were compared.
    """

    check: str
    layout: str
    mistakes: Sequence[Finding] = ()
    right: bool = False
    evidence: str = ""
    trial: Trial | None = None

    def __repr__(self) -> str:
        names = ", ".join(finding.name for finding in self.mistakes)
        lines = [f"{self.check}: right, in this layout: {self.layout}"]
        if not self.right:
            named = names or "wrong, by no known mistake"
            lines = [f"{self.check}: {named} (layout: {self.layout})"]
        for name, evidence in self.mistakes:
            mistake = MISTAKES[name]
            lines += [
                f"  {name}: {mistake.title}",
                f"    evidence  {evidence}",
                f"    change    {mistake.change}",
                f"    source    {mistake.source}",
            ]
        lines += [] if names else [f"  {self.evidence}"]
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


def distance(trial: Trial, wrong: Mapping[str, Any] | None = None) -> float:
    """Difference of an output from the reference, right or with options of mistakes."""
    try:
        with np.errstate(all="ignore"):
            reference = trial.reference(**{**trial.options, **(wrong or {})})
            return difference(trial.output, reference)
    except ValueError:  # these options have no meaning for these shapes
        return float("inf")


def judged(check: str, layout: str, changes: Mapping[str, tuple[bool, str]]) -> Answer:
    """The answer of properties: for each mistake whether it shows, and its evidence."""
    findings = [Finding(name, evidence) for name, (shows, evidence) in changes.items() if shows]
    return Answer(check, layout, findings, not findings, "no property of a mistake shows")


def diagnose(subject: Subject, about: str, trials: Sequence[Trial]) -> Answer:
    """The answer for outputs in several layouts: right in one, else the mistakes that explain it.

    One mistake is preferred to two, and earlier layouts to later ones.

    Raises:
      UserError: there is no output.
    """
    if not trials:
        raise subject.rejection or subject.rejected("it has no output")
    rows = [mistake for mistake in MISTAKES.values() if mistake.about == about]
    singles = [({row.name: wrong}, wrong) for row in rows for wrong in row.wrong]
    pairs = [
        (first | second, {**options, **others})
        for (first, options), (second, others) in itertools.combinations(singles, 2)
        if first.keys() != second.keys() and not options.keys() & others.keys()
    ]
    for group in ([({}, {})], singles, pairs):
        for trial, (names, wrong) in itertools.product(trials, group):
            remaining = distance(trial, wrong)
            if remaining > (TOLERANCE if trial.output.size > 1 else TOLERANCE_OF_ONE):
                continue
            apart = distance(trial)
            how = f"by {apart:.2g}" if np.isfinite(apart) else "in its shape or by NaN"
            evidence = f"differs {how} from the right result, by {remaining:.1e} from this one"
            findings = [Finding(name, evidence) for name in names]
            evidence = f"the difference from the reference is {remaining:.1e}"
            return Answer(subject.check, trial.name, findings, not names, evidence, trial)
    nearest = min(trials, key=distance)
    change = difference(subject.again(nearest), nearest.output)
    if change > TOLERANCE:
        evidence = f"a second call differs by {change:.2g}"
        return judged(subject.check, nearest.name, {"dropout_at_evaluation": (True, evidence)})
    evidence = f"the smallest difference from the reference is {distance(nearest):.2g}"
    return Answer(subject.check, nearest.name, evidence=evidence, trial=nearest)
