"""What all processes of a job must have alike, and how they are told where they do not."""

from collections.abc import Callable, Mapping
from typing import Any

from transformer_jax.errors import UserError

Statement = Mapping[str, str]
"""What a process has, or is about to do: name -> a text that must be the same in all."""

type Prepare[Own] = Callable[[], tuple[Own, Statement]]
"""Makes something of this process's own, and what it states about it."""

_SHOWN = 3  # differences in one message


def reported[Own](prepare: Prepare[Own]) -> tuple[Any, dict[str, Any]]:
    """This process's own thing, and what the others hear: its statement, or its error."""
    try:
        own, statement = prepare()
    except UserError as error:
        return None, {"error": str(error)}
    return own, {"statement": dict(statement)}


def disagreement(reports: Mapping[int, Mapping[str, Any]]) -> str:
    """What is wrong, for all to be told; empty if all processes have made the same statement.

    Args:
      reports: of each process, by its number, as `reported` makes them.
    """
    errors = {number: report["error"] for number, report in reports.items() if "error" in report}
    if len(errors) == len(reports) and len(set(errors.values())) == 1:
        return str(next(iter(errors.values())))
    problems = [f"process {number}: {error}" for number, error in errors.items()]
    first, *others = [n for n in sorted(reports) if n not in errors] or [0]
    for number in others:
        ours, theirs = reports[first]["statement"], reports[number]["statement"]
        for name in dict.fromkeys((*ours, *theirs)):
            here, there = theirs.get(name), ours.get(name)
            if here == there:
                continue
            one = f"{name} is {here}" if here is not None else f"it has no {name}"
            other = f"'s is {there}" if there is not None else " has none"
            problems.append(f"process {number}: {one}, process {first}{other}")
    if len(problems) > _SHOWN:
        problems[_SHOWN:] = [f"and {len(problems) - _SHOWN} differences more"]
    return "; ".join(problems)
