# SPDX-License-Identifier: Apache-2.0
"""Verdicts on claims: the file and its text.

A verdict names by digests all that it depends on: the claim, and of each row the config and what
its numbers are computed from (`fingerprints`). `claims.check_claim` computes them again.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.lab.report import Report, shown_mean, with_nan
from transformer_jax.lab.sweeps.results import PLACES
from transformer_jax.runs.config import chosen_fields
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.shipped import shipped_files
from transformer_jax.runtime.files import parse_json, read_regular

STATISTIC = "statistic"
"""Name of a digest that every verdict with fingerprints has."""
_DIGITS = 32  # of a SHA-256
_FIELDS: dict[str, Any] = {"name": str, "verdict": str, "asked": dict, "digests": dict}
"""Fields of a verdict that are read, and their types."""
_WITH_FINGERPRINTS = {"configs": dict, "machine": dict}  # further fields of these verdicts


def read_verdict(path: Path) -> dict[str, Any]:
    """Reads a verdict; UserError if the file is missing or damaged."""
    try:
        verdict = parse_json(read_regular(path))
        mappings = [verdict["asked"]["overrides"], *(verdict.get("configs") or {}).values()]
        # Verdicts of earlier versions have no fingerprints, and digests in place of configs.
        fields = _FIELDS | (_WITH_FINGERPRINTS if STATISTIC in verdict["digests"] else {})
        is_valid = all(isinstance(verdict[name], kind) for name, kind in fields.items())
        is_valid &= all(isinstance(mapping, dict) for mapping in mappings)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no verdict: {error}") from error
    except (AttributeError, KeyError, TypeError):
        is_valid = False
    if not is_valid:
        raise UserError(f"{path} is no verdict: a field is missing or of another type")
    return verdict


def recorded_verdicts(claims: Collection[str] = ()) -> list[Path]:
    """Files of the verdicts on shipped claims (experiments/results/claims of a checkout), on those
    named in `claims`, or on all.

    Raises:
      UserError: there are none.
    """
    folders = {path.resolve().parents[1] for path in shipped_files("claim").values()}
    paths = [path for folder in folders for path in folder.glob("results/claims/*.json")]
    paths = [path for path in paths if not claims or path.stem in claims]
    if not paths:
        about = f" on {', '.join(claims)}" if claims else ""
        raise UserError(f"there are no recorded verdicts{about} here; name the files of verdicts")
    return sorted(paths)


def verdict_report(verdict: Mapping[str, Any]) -> Report:
    """The report of a verdict, whose JSON is the verdict."""
    metric = verdict["metric"]
    values = {name: with_nan(side) for name, side in verdict["values"].items()}
    sides = [["", "mean", "seeds"]]
    for name, side in values.items():
        sides.append([name, shown_mean(side), ", ".join(f"{value:.4g}" for value in side)])
    low, high = map(_shown, verdict["interval"])
    differences = [
        ["", "difference", "interval", "smallest of interest"],
        [metric, _shown(verdict["difference"]), f"{low} to {high}", f"{verdict['smallest']:g}"],
    ]
    for name, (first, second) in verdict.get("published", {}).items():
        shown = f"{first - second:+.3g} ({first:g} and {second:g})"
        differences.append([f"published: {name}", shown, "-", "-"])
    looks = ", ".join(map(str, verdict["looks"]))
    return Report(
        title=verdict["statement"],
        values={metric: values},
        statements={verdict["statement"]: verdict["verdict"]},
        tables={metric: sides, "Differences": differences},
        record=verdict,
        notes=[
            f"{verdict['seeds']} seeds of each, {verdict['test']}, error rate "
            f"{verdict['error_rate']:g} over looks at {looks} seeds"
        ],
    )


def stated_configs(configs: Mapping[str, Settings]) -> dict[str, dict[str, Any]]:
    """The fields that each row's config sets, {"section.field": value}, without places of data.

    Fields with their default are left out, so that a new field changes no verdict. A default that
    changes is a change of the code.
    """
    stated = {}
    for row, settings in configs.items():
        chosen = chosen_fields(settings.values)
        stated[row] = {name: value for name, value in chosen.items() if name not in PLACES}
    return json.loads(json.dumps(stated))  # a verdict's file has lists for tuples


def changed_fields(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Fields that differ between two of `stated_configs`."""
    missing = object()  # has its default; None is a value
    names = dict.fromkeys([*before, *now])
    return [name for name in names if before.get(name, missing) != now.get(name, missing)]


def digest_of(value: Any) -> str:
    """SHA-256 of a value of JSON."""
    text = json.dumps(value, sort_keys=True, default=str)
    return f"SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
