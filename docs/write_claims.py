# SPDX-License-Identifier: Apache-2.0
"""Writes docs/claims.md, the verdicts on claims about Transformers.

    python docs/write_claims.py

A verdict is experiments/results/claims/NAME.json, a copy of the NAME.verdict.json that
`transformer_jax claim NAME` writes. What the claim means and how it was tested is the docstring of
experiments/claims/NAME.py.
"""

import ast
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.scoring.sequential import FAILS, HOLDS, HOLDS_SMALL, OPPOSITE, UNDECIDED

PAGE = Path(__file__).with_name("claims.md")
EXPERIMENTS = PAGE.parents[1] / "experiments"

INTRODUCTION = """\
# Claims about Transformers, decided

{total} statements of papers and tutorials, each tested with small models over several seeds:

{counts}

A verdict is about the setting that its claim file states (a small model, few steps, one data set),
not about all models. It is reached by [a sequential test](comparing.md#claims), whose error rate
counts all looks: 5% for each claim. Of {total} statements without an effect about two would be said
to hold. `gradients_by_depth` was tested twice, in another setting after the first; its 5% no longer
holds.

The effect is the mean difference of the two rows, positive where the statement is right, with its
interval over all looks. "Published" are the numbers of the source for the two rows, which are of
another task and size. "No interval" means that a seed diverged, so that signs were counted. The
seconds are those of training and measuring all seeds on CPU cores that other work shared. To decide
a claim again, or to see which verdicts are out of date:

    transformer_jax claim norm_without_warmup --workdir=runs/claims
    transformer_jax claim --check

Claims that share a `--workdir` train rows of the same name and config once. The files are
`experiments/claims/NAME.py` and `experiments/results/claims/NAME.json`; `docs/write_claims.py`
generates this page from them.
"""

GROUPS = {
    HOLDS: ("Holds", "The effect is at least the smallest of interest."),
    HOLDS_SMALL: (
        "Holds, but may be smaller than of interest",
        "There is an effect in the direction of the statement; its interval reaches below the "
        "smallest of interest.",
    ),
    FAILS: (
        "Does not hold by as much as is of interest",
        "The effect is smaller than the smallest of interest, and may be none.",
    ),
    OPPOSITE: ("The opposite holds", "The effect points the other way."),
    UNDECIDED: ("Undecided", "The seeds of the last look decided neither way."),
}
HEAD = ("Claim", "Statement", "Source", "Effect", "Smallest of interest", "Seeds", "Seconds")


def verdicts() -> list[dict[str, Any]]:
    """Recorded verdicts, by name."""
    paths = sorted(EXPERIMENTS.glob("results/claims/*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def page() -> str:
    """Returns the text of docs/claims.md."""
    recorded = verdicts()
    counts = Counter(verdict["verdict"] for verdict in recorded)
    listed = [f"- {counts[group]}: {group}" for group in GROUPS if counts[group]]
    introduction = INTRODUCTION.format(total=len(recorded), counts="\n".join(listed))
    parts = [introduction]
    for group, (title, meaning) in GROUPS.items():
        rows = [_row(verdict) for verdict in recorded if verdict["verdict"] == group]
        if rows:
            parts.append("\n".join([f"## {title}", "", meaning, "", *_table(HEAD, rows), ""]))
    return "\n".join([*parts, "## Settings", "", *map(_setting, recorded)])


def _row(verdict: Mapping[str, Any]) -> tuple[str, ...]:
    name = verdict["name"]
    return (
        f"[`{name}`](#{name})",
        verdict["statement"],
        verdict["source"],
        _effect(verdict),
        f"{verdict['smallest']:g}",
        str(verdict["seeds"]),
        f"{verdict['seconds']:,.0f}" if verdict["seconds"] >= 10 else f"{verdict['seconds']:.1f}",
    )


def _effect(verdict: Mapping[str, Any]) -> str:
    low, high = verdict["interval"]
    interval = "no interval" if None in (low, high) else f"[{low:.3g}, {high:.3g}]"
    difference = verdict["difference"]
    shown = "none" if difference is None else f"{difference:+.3g}"
    return f"{shown} {interval}, {verdict['metric']}"


def _setting(verdict: Mapping[str, Any]) -> str:
    """Returns the part about one claim: its docstring, values and command."""
    name = verdict["name"]
    source = (EXPERIMENTS / "claims" / f"{name}.py").read_text(encoding="utf-8")
    paragraphs = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")
    told = [text for text in paragraphs if not text.lstrip().startswith("transformer_jax claim")]
    values = [
        f"- {row}: {', '.join('diverged' if value is None else f'{value:.4g}' for value in seeds)}"
        for row, seeds in verdict["values"].items()
    ]
    published = [
        f"- published: {metric} {first:g} and {second:g} ({first - second:+.3g})"
        for metric, (first, second) in verdict.get("published", {}).items()
    ]
    verdict_line = f"**{verdict['verdict'].capitalize()}**, {verdict['test']}, {verdict['metric']}:"
    command = f"    {verdict['command']}"
    return "\n".join(
        [f"### {name}", "", *_spaced(told), verdict_line, "", *values, *published, "", command, ""]
    )


def _spaced(paragraphs: Iterable[str]) -> list[str]:
    return [line for paragraph in paragraphs for line in (paragraph, "")]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', r'\|') for cell in cells)} |" for cells in lines]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
