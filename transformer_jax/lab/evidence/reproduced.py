# SPDX-License-Identifier: Apache-2.0
"""Report of a reproduction: the paper's numbers beside ours, and the statements.

As text, Markdown, JSON, a table in CSV, and the picture of a figure.
"""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_jax.lab.evidence.statements import Decided
from transformer_jax.lab.pictures import draw_profiles, save_figure
from transformer_jax.lab.sweeps.tables import aligned, markdown_table
from transformer_jax.runs.workdir import REPRODUCTION
from transformer_jax.runtime.files import write_atomic
from transformer_jax.scoring.statistics import Difference, compare_seeds, mean_line
from transformer_jax.summary import Summarized

if TYPE_CHECKING:
    from transformer_jax.lab.pictures.style import Picture


class ReproducedRow(NamedTuple):
    """A row of the paper's table and of ours.

    Attributes:
      name: the paper's row.
      own: our row's name; empty if it is the same.
      published: metric -> the paper's number.
      values: metric -> our value of each seed, NaN if it diverged; empty if it is not trained.
    """

    name: str
    own: str
    published: Mapping[str, float]
    values: Mapping[str, Sequence[float]]

    def finite(self, metric: str) -> list[float]:
        """Values of a metric that are finite numbers."""
        return [value for value in self.values.get(metric, ()) if math.isfinite(value)]


@dataclasses.dataclass(frozen=True, repr=False)
class Reproduced(Summarized):
    """A paper's table or figure beside ours.

    Attributes:
      title: the table or figure, and the paper.
      asked: what was reproduced, and at which scale.
      rows: the rows; differences are from the first.
      statements: the paper's statements with their verdicts.
      curve: metrics that the picture draws.
      axes: titles of its axes.
      notes: sentences that the report ends with.
      seconds: time that the call took, without that of earlier calls.
    """

    title: str
    asked: Mapping[str, Any]
    rows: Sequence[ReproducedRow]
    statements: Sequence[Decided]
    curve: Sequence[str]
    axes: tuple[str, str]
    notes: Sequence[str]
    seconds: float

    @property
    def metrics(self) -> list[str]:
        """The paper's metrics, then ours."""
        names = (name for row in self.rows for name in (*row.published, *row.values))
        published = list(dict.fromkeys(name for row in self.rows for name in row.published))
        return list(dict.fromkeys([*published, *names]))

    def differences(self, metric: str) -> dict[str, Difference]:
        """Differences of a metric from the first row, by row."""
        values = {row.name: row.finite(metric) for row in self.rows}
        return {test.name: test.difference for test in compare_seeds(metric, values)}

    def summary(self) -> Mapping[str, Any]:
        """The title and the verdicts."""
        verdicts = {statement.text: statement.verdict for statement in self.statements}
        return {"title": self.title, **verdicts}

    def plot(self) -> "Picture":
        """Draws the metrics of `curve`, a line for each row."""
        rows = {row.name: [row.finite(name) for name in self.curve] for row in self.rows}
        return draw_profiles({"": rows}, self.curve, *self.axes)

    def as_text(self) -> str:
        """The table and the statements, for a terminal."""
        lines = [self.title, "", *aligned(self._cells()), ""]
        for statement in self.statements:
            lines.append(f"{statement.verdict.upper()}: {statement.text}")
            lines += [f"  {outcome.line()}" for outcome in statement.outcomes]
        return "\n".join([*lines, *(["", *self.notes] if self.notes else [])])

    def as_markdown(self) -> str:
        """The table and the statements in Markdown."""
        statements = [["statement", "verdict", "comparisons"]]
        for statement in self.statements:
            lines = "<br>".join(outcome.line() for outcome in statement.outcomes)
            statements.append([statement.text, statement.verdict, lines])
        parts = [markdown_table(self._cells()), markdown_table(statements), *self.notes]
        return f"# {self.title}\n\n" + "\n\n".join(parts)

    def as_csv(self) -> str:
        """A line for each row and metric, with all digits."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        titles = ("row", "own_row", "metric", "published", "mean", "deviation", "seeds")
        writer.writerow([*titles, "difference", "low", "high"])
        for metric in self.metrics:
            differences = self.differences(metric)
            for row in self.rows:
                values = row.finite(metric)
                published = row.published.get(metric, "")
                mean = sum(values) / len(values) if values else ""
                spread = _deviation(values) if len(values) > 1 else ""
                line = [row.name, row.own, metric, published, mean, spread, len(values)]
                difference = differences.get(row.name)
                line += _numbers(difference) if difference else ["", "", ""]
                writer.writerow(line)
        return out.getvalue()

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        differences = {metric: self.differences(metric) for metric in self.metrics}
        rows = [
            {
                "name": row.name,
                "own": row.own,
                "published": dict(row.published),
                "values": {name: list(map(_finite, seeds)) for name, seeds in row.values.items()},
                "differences": {
                    metric: _numbers(of_rows[row.name])
                    for metric, of_rows in differences.items()
                    if row.name in of_rows
                },
            }
            for row in self.rows
        ]
        return {
            "title": self.title,
            "asked": dict(self.asked),
            "rows": rows,
            "statements": [statement.as_json() for statement in self.statements],
            "notes": list(self.notes),
            "seconds": self.seconds,
        }

    def _cells(self) -> list[list[str]]:
        """The header, and the cells of each row: per metric the paper's, ours, our difference."""
        columns: list[tuple[str, Callable[[ReproducedRow], str]]] = []
        if any(row.own not in ("", row.name) for row in self.rows):
            columns.append(("our row", lambda row: row.own))
        for metric in self.metrics:
            columns += self._columns(metric)
        body = [[row.name, *(cell(row) for _, cell in columns)] for row in self.rows]
        return [["", *(title for title, _ in columns)], *body]

    def _columns(self, metric: str) -> list[tuple[str, Callable[[ReproducedRow], str]]]:
        """Titles and cells of a metric; columns without a value are left out."""
        differences = self.differences(metric)

        def published(row: ReproducedRow) -> str:
            return f"{row.published[metric]:g}" if metric in row.published else "-"

        def ours(row: ReproducedRow) -> str:
            values = row.finite(metric)
            num_lost = len(row.values.get(metric, ())) - len(values)
            note = f" ({num_lost} diverged)" if num_lost else ""
            if not values:
                return f"-{note}"
            if len(values) == 1:
                return f"{values[0]:.3g}{note}"
            return mean_line(values).removesuffix(f" ({len(values)} seeds)") + note

        def difference(row: ReproducedRow) -> str:
            if row.name not in differences:
                return "-"
            mean, low, high = _numbers(differences[row.name])
            return f"{mean:+.3g} [{low:.3g}, {high:.3g}]"

        columns: list[tuple[str, Callable[[ReproducedRow], str]]] = []
        if any(metric in row.published for row in self.rows):
            columns.append((f"paper: {metric}", published))
        if any(row.finite(metric) for row in self.rows):
            columns.append((f"ours: {metric}", ours))
        if differences:
            columns.append((f"from {self.rows[0].name} [95%]", difference))
        return columns


def write_reproduced(found: Reproduced, folder: Path) -> None:
    """Writes reproduction.json, .md and .csv, and of a figure .png, into a folder."""
    path = folder / REPRODUCTION
    write_atomic(path.with_suffix(".md"), found.as_markdown().rstrip() + "\n")
    write_atomic(path.with_suffix(".csv"), found.as_csv())
    if found.curve:
        save_figure(found.plot(), path.with_suffix(".png"))
    write_atomic(path.with_suffix(".json"), json.dumps(found.as_json(), indent=2) + "\n")


def _numbers(difference: Difference) -> list[float]:
    return [difference.mean, difference.low, difference.high]


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
