# SPDX-License-Identifier: Apache-2.0
"""Results of a night: as JSON for programs, as tables, and as a page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.lab.analysis.pages import page
from transformer_jax.lab.night.definition import BASELINE
from transformer_jax.lab.night.ledger import FINISH, Line, Verdict
from transformer_jax.lab.night.loop import OpenNight, decide_proposals, finish_night
from transformer_jax.lab.report import Cells, Report, json_number, shown_mean, shown_name, with_nan
from transformer_jax.runtime.files import write_atomic


def night(folder: str | Path, *, finish: bool = False) -> Report:
    """Decides the proposals in a night's folder; begins the night if it is new.

    Args:
      folder: with `night.py` and `proposals` (docs/nights.md).
      finish: then opens the held-out data and ends the night.

    Raises:
      UserError: the definition or the ledger cannot be used, the night began with another
        definition or is finished, or the baseline cannot train or fails its own oracles.
      Stopped: a SIGTERM or an interrupt came; the same call continues.
    """
    for _ in decide_proposals(folder):
        write_page(folder)
    if finish:
        finish_night(folder)
    return write_page(folder)


def night_state(folder: str | Path) -> dict[str, Any]:
    """Open and decided proposals as JSON; trains nothing."""
    night = OpenNight(folder, works=False)
    ledger = night.ledger
    ends = ledger.of_kind("end")
    outcomes = ledger.tests()
    baseline = night.baseline()
    spent = ledger.spent()
    return {
        "open": [proposal.name for proposal in night.open_proposals()],
        "promoted": [end["name"] for end in ledger.promoted],
        "refused": {e["name"]: e["rule"] for e in ends if e["verdict"] == Verdict.REFUSED},
        BASELINE: {
            "number": night.number,
            "overrides": dict(baseline.overrides),
            "modules": night.modules(baseline),
            night.night.metric: list(map(json_number, ledger.values(BASELINE, night.number))),
        },
        "budget": {unit: [spent[unit], most] for unit, most in night.night.budget.items()},
        "is_spent": night.is_spent(),
        "next_level": night.control.level(len(outcomes), outcomes),
        "is_finished": bool(ledger.of_kind(FINISH)),
    }


def write_page(folder: str | Path) -> Report:
    """Writes the page of a night, and returns its report."""
    report = night_report(OpenNight(folder, works=False))
    data = {**report.record, "title": report.title, "notes": report.notes}
    data["finish_table"] = report.tables.get(_FRESH, ())
    styles = ("theme.css", "comparison.css")
    scripts = ("document.js", "tables.js", "night.js")
    html = page(report.title, (*styles, "night.html", *scripts), data)
    write_atomic(Path(folder) / "night.html", html)
    return report


_FRESH = "Winner and first baseline on fresh seeds"


def night_report(night: OpenNight) -> Report:
    """The report of a night."""
    ledger = night.ledger
    metric = night.night.metric
    ends = ledger.of_kind("end")
    columns = ["verdict", "rule", "difference", "interval", "seeds", "seconds", "lines"]
    tables: dict[str, Cells] = {"Proposals": [["", *columns], *map(_cells, ends)]}
    values: Mapping[str, Mapping[str, Any]] = {}
    for line in ledger.of_kind(FINISH):
        tables[_FRESH] = _fresh_cells(line)
        values = {metric: {name: with_nan(v) for name, v in line["values"]["valid"].items()}}
    spent = ledger.spent()
    notes = [
        f"Differences of {metric} on the validation split, positive where the proposal is better, "
        f"a median over seeds; of interest from {night.night.smallest:g}.",
        f"Error rate {night.night.error_rate:g} for all proposals together, by "
        f"{night.night.control}.",
        f"{spent['runs']:g} runs and {spent['seconds']:.0f} s of training.",
    ]
    record = {
        "question": night.night.question,
        "metric": metric,
        "proposals": ends,
        FINISH: ledger.of_kind(FINISH),
        "digests": [line["digests"] for line in ledger.of_kind("measured")],
    }
    return Report(
        title=night.night.question or Path(night.folder).absolute().name,
        values=values,
        statements={f"{end['name']}: {end['why']}": end["verdict"] for end in ends},
        tables=tables,
        record=record,
        notes=notes,
    )


def _cells(end: Line) -> list[str]:
    measured = ["-"] * 4
    if "interval" in end:
        measured = [*_interval_cells(end), str(end["seeds"]), f"{end['costs']['seconds']:.1f}"]
    cells = [shown_name(end["name"]), end["verdict"], end["rule"]]
    return [*cells, *measured, str(end["lines"])]


def _interval_cells(line: Mapping[str, Any]) -> list[str]:
    low, high = line["interval"]
    shown = [None if value is None else f"{value:.4g}" for value in (low, high)]
    difference = "-" if line["difference"] is None else f"{line['difference']:+.4g}"
    return [difference, f"{shown[0] or '-inf'} to {shown[1] or 'inf'}"]


def _fresh_cells(line: Line) -> Cells:
    splits = ("valid", "test")
    cells = [["", *splits]]
    for name in line["values"]["valid"]:
        of_row = [line["values"][split][name] for split in splits]
        means = ["no held-out data" if v is None else shown_mean(with_nan(v)) for v in of_row]
        cells.append([name, *means])
    differences = [line["differences"].get(split) for split in splits]
    shown = ["{} [{}]".format(*_interval_cells(d)) if d else "-" for d in differences]
    return [*cells, ["difference (positive is better)", *shown]]
