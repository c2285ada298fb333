# SPDX-License-Identifier: Apache-2.0
"""Writes docs/claims.md, the verdicts on claims about Transformers, and their settings and values,
experiments/results/claims.md.

    python docs/write_claims.py

A verdict is experiments/results/claims/NAME.json, a copy of the NAME.verdict.json that
`transformer_jax claim NAME` writes. What the claim means and how it was tested is the docstring of
experiments/claims/NAME.py; a paragraph of it that begins with `Tutorials:` is in a table.
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
SETTINGS = EXPERIMENTS / "results" / "claims.md"
TUTORIALS = "Tutorials: "

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
interval over all looks. "No interval" means that a seed diverged, so that signs were counted. Each
claim links to its source, setting, values and command. To decide a claim again, or to see
[which verdicts are fresh](comparing.md#is-a-verdict-still-fresh):

    transformer_jax claim norm_without_warmup --workdir=runs/claims
    transformer_jax claim --check

The files are `experiments/claims/NAME.py` and `experiments/results/claims/NAME.json`;
`docs/write_claims.py` generates this page from them.
"""

SETTINGS_INTRODUCTION = """\
# Claims: settings and values

What each claim of [the table](../../docs/claims.md) means, how it was tested, and the values of all
seeds. "Published" are the numbers of the source for the two rows, which are of another task and
size. Seconds are those of training and measuring all seeds on CPU cores that other work shared.
Claims that share a `--workdir` train rows of the same name and config once.
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
HEAD = ("Statement", "Effect", "Of interest from", "Seeds")


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
    sayings = [
        (
            *text.removeprefix(TUTORIALS).split(" Here: "),
            f"[{verdict['verdict']}]({_link(verdict)})",
        )
        for verdict in recorded
        for text in _docstring(verdict)
        if text.startswith(TUTORIALS)
    ]
    head = ("The tutorials say", "Measured here", "Claim")
    return "\n".join([*parts, "## What tutorials say", "", *_table(head, sayings), ""])


def settings_page() -> str:
    """Returns the text of experiments/results/claims.md."""
    return "\n".join([SETTINGS_INTRODUCTION, *map(_setting, verdicts())])


def _row(verdict: Mapping[str, Any]) -> tuple[str, ...]:
    statement = f"[{verdict['statement']}]({_link(verdict)})"
    return statement, _effect(verdict), f"{verdict['smallest']:g}", str(verdict["seeds"])


def _link(verdict: Mapping[str, Any]) -> str:
    return f"../experiments/results/claims.md#{verdict['name']}"


def _docstring(verdict: Mapping[str, Any]) -> list[str]:
    """Returns the paragraphs that say what a claim means."""
    source = (EXPERIMENTS / "claims" / f"{verdict['name']}.py").read_text(encoding="utf-8")
    paragraphs = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")
    joined = [
        text.replace("\n", " ") if text.startswith(TUTORIALS) else text for text in paragraphs
    ]
    return [text for text in joined if not text.lstrip().startswith("transformer_jax claim")]


def _effect(verdict: Mapping[str, Any]) -> str:
    low, high = verdict["interval"]
    interval = "no interval" if None in (low, high) else f"[{low:.3g}, {high:.3g}]"
    difference = verdict["difference"]
    shown = "none" if difference is None else f"{difference:+.3g}"
    return f"{shown} {interval}, {verdict['metric']}"


def _setting(verdict: Mapping[str, Any]) -> str:
    """Returns the part about one claim: its docstring, values and command."""
    name = verdict["name"]
    told = [text for text in _docstring(verdict) if not text.startswith(TUTORIALS)]
    seconds = verdict["seconds"]
    told.append(
        f"Source: {verdict['source']}. Smallest difference of interest {verdict['smallest']:g}; "
        f"{verdict['seeds']} seeds, {seconds:,.{int(seconds < 10)}f} s."
    )
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
    SETTINGS.write_text(settings_page(), encoding="utf-8")
