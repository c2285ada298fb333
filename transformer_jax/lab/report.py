# SPDX-License-Identifier: Apache-2.0
"""Reports of what was measured, and the tables that they and sweeps are made of."""

import csv
import dataclasses
import html
import io
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer_jax.errors import escape_controls
from transformer_jax.lab.pictures.style import MARK, Picture
from transformer_jax.scoring.statistics import SeedTest, diverged, finite
from transformer_jax.summary import aligned

type Cells = Sequence[Sequence[str]]
"""Lines of a table; the first is the header, and the first column has the names."""

_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "{}&%$#_"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\N{PLUS-MINUS SIGN}": r"$\pm$",
        MARK: r"$\neq$",
    }
)


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """Values of rows over seeds, the tests of their differences, and what made each value.

    Attributes:
      title: names the rows.
      values: metric -> row -> value of each seed, NaN if it diverged; the first row is the base.
      tables: heading -> cells, for people.
      record: all of it for programs, as JSON; `digests` are those of what made the values.
      tests: over seeds.
      statements: sentence -> verdict.
      notes: what was not tested, and why.
      draw: draws the figure.
    """

    title: str
    values: Mapping[str, Mapping[str, Sequence[float]]]
    tables: Mapping[str, Cells]
    record: Mapping[str, Any]
    tests: Sequence[SeedTest] = ()
    statements: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()
    draw: Callable[[], Picture] | None = None

    @property
    def digests(self) -> Mapping[str, Any]:
        """Digests of what made the values: checkpoints, data, config."""
        return self.record["digests"]

    def __repr__(self) -> str:
        return self.as_text()

    def _repr_html_(self) -> str:
        return "".join(map(html_table, self.tables.values()))

    def as_text(self) -> str:
        """Statements, tables and notes for a terminal."""
        return self._joined("{}:", lambda cells: "\n".join(aligned(cells)))

    def as_markdown(self) -> str:
        """Statements, tables and notes in Markdown."""
        return self._joined("## {}\n", markdown_table)

    def as_latex(self) -> str:
        """The tables in LaTeX."""
        return "\n\n".join(map(latex_table, self.tables.values()))

    def as_csv(self) -> str:
        """A line for the value of each metric, row and seed."""
        lines = [("metric", "row", "seed", "value")]
        for metric, rows in self.values.items():
            for row, seeds in rows.items():
                lines += [(metric, row, str(i), repr(value)) for i, value in enumerate(seeds)]
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(lines)
        return out.getvalue()

    def as_json(self) -> dict[str, Any]:
        """All values, tests and digests as JSON."""
        return dict(self.record)

    def plot(self) -> Picture:
        """Draws the figure; ValueError if the report has none."""
        if self.draw is None:
            raise ValueError("this report has no figure")
        return self.draw()

    def _joined(self, heading: str, table: Callable[[Cells], str]) -> str:
        verdicts = [f"{verdict.upper()}: {text}" for text, verdict in self.statements.items()]
        tables = [f"{heading.format(name)}\n{table(cells)}" for name, cells in self.tables.items()]
        return "\n\n".join([*verdicts, *tables, *self.notes])


def shown_mean(values: Sequence[float | None]) -> str:
    """Mean ± deviation over seeds, with four significant digits of the mean.

    Seeds that diverged (NaN) are counted, and left out with those that have no value (None).
    """
    numbers = finite(values)
    note = f" ({diverged(values)})" if diverged(values) else ""
    if not numbers:
        return note.strip() or "-"
    mean = statistics.fmean(numbers)
    digits = max(0, 3 - math.floor(math.log10(abs(mean)))) if mean else 3
    if len(numbers) == 1:
        return f"{mean:.{digits}f}{note}"
    return f"{mean:.{digits}f} ± {statistics.stdev(numbers):.{digits}f}{note}"


def difference_cells(tests: Sequence[SeedTest]) -> list[list[str]]:
    """A table of differences from the base, with their intervals and tests over seeds."""
    cells = [["", "metric", "difference", "95% interval", "p (Holm)", "seeds that would decide"]]
    for test in tests:
        difference = test.difference
        needed = "-" if test.differs else "?"  # decided, or no number of seeds can be given
        if test.seeds_to_decide is not None:
            needed = str(test.seeds_to_decide)
        names = [shown_name(test.name), shown_name(test.metric)]
        interval = f"{difference.low:.4g} to {difference.high:.4g}"
        p_value = f"{test.p_adjusted:.2g}"
        cells.append([*names, f"{difference.mean:+.4g}", interval, p_value, needed])
    return cells


def json_number(value: float) -> float | None:
    """A number for JSON, which has no NaN and no infinity."""
    return float(value) if math.isfinite(value) else None


def with_nan(values: Sequence[float | None]) -> list[float]:
    """The numbers of a JSON list, NaN for null."""
    return [math.nan if value is None else float(value) for value in values]


def shown_name(name: str) -> str:
    """A user's name on one line, without control characters."""
    return escape_controls(" ".join(name.split()))


def markdown_table(cells: Cells) -> str:
    """A table in Markdown."""
    rule = ["---", *["---:"] * (len(cells[0]) - 1)]
    lines = (cells[0], rule, *cells[1:])
    escaped = [[html.escape(cell, False).replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def latex_table(cells: Cells) -> str:
    """A table in LaTeX, with the rules of booktabs."""
    escaped = [[cell.translate(_LATEX) for cell in line] for line in cells]
    for line in escaped:
        if line[0].startswith(("[", "*")):  # an option of the line end before it
            line[0] = f"{{}}{line[0]}"
    head, *body = (f"{' & '.join(line)} \\\\" for line in escaped)
    columns = f"l{'r' * (len(cells[0]) - 1)}"
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def html_table(cells: Cells) -> str:
    """A table in HTML, all text escaped."""
    lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in line) for line in cells)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
