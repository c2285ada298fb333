# SPDX-License-Identifier: Apache-2.0
"""Tables of experiments: mean and deviation over seeds, as text, Markdown, LaTeX and CSV.

A value that differs from that of the first row, by a test over the seeds, is marked.
"""

import csv
import dataclasses
import io
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.lab.pictures.style import MARK
from transformer_jax.lab.report import (
    aligned,
    difference_cells,
    html_table,
    latex_table,
    markdown_table,
    shown_mean,
    shown_name,
)
from transformer_jax.scoring.statistics import SeedTest, compare_seeds, finite

if TYPE_CHECKING:
    from pandas import DataFrame


_TEST_COLUMNS = ("difference", "low", "high", "p_holm", "seeds_to_decide")
"""Columns of a metric's difference from the first row: its 95% interval is low to high."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One variant of an experiment.

    Attributes:
      name: of the variant.
      metrics: name -> one value for each seed: NaN if the seed diverged, None if it has no such
        metric.
      parameters: number of parameters of the model.
      tokens_per_s: tokens that the model reads, source and target, without padding; sum over the
        seeds that trained at once.
      seconds: wall time of all seeds.
      values: of a trial of a search, {"section.field": value}.
      steps: that a trial of a search has trained.

    Raises:
      ValueError: a value has the wrong type, which happens with rows that are read from a file.
    """

    name: str
    metrics: Mapping[str, Sequence[float | None]]
    parameters: int
    tokens_per_s: float
    seconds: float
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    steps: int | None = None

    def __post_init__(self) -> None:
        numbers = [self.parameters, self.tokens_per_s, self.seconds]
        numbers += [
            value for of_seeds in self.metrics.values() for value in of_seeds if value is not None
        ]
        if not (self.metrics and all(isinstance(number, int | float) for number in numbers)):
            raise ValueError("a row has metrics, and they are numbers")
        if not (isinstance(self.values, Mapping) and isinstance(self.steps, int | None)):
            raise ValueError("a trial has a dict of values, and a number of steps")

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(next(iter(self.metrics.values())))

    def first_seeds(self, count: int) -> "Row":
        """The row with its first seeds only, and their share of the time."""
        if count >= self.seeds:
            return self
        metrics = {name: values[:count] for name, values in self.metrics.items()}
        seconds = self.seconds * count / self.seeds
        return dataclasses.replace(self, metrics=metrics, seconds=seconds)

    def finite(self, metric: str) -> list[float]:
        """Values of a metric that are finite numbers."""
        return finite(self.metrics.get(metric, ()))

    def mean(self, metric: str) -> float:
        """Mean over the seeds that have the metric; NaN if none has."""
        return statistics.fmean(self.finite(metric)) if self.finite(metric) else math.nan

    def deviation(self, metric: str) -> float:
        """Standard deviation of the sample; NaN for fewer than two seeds."""
        values = self.finite(metric)
        return statistics.stdev(values) if len(values) > 1 else math.nan


class Rows(list[Row]):
    """The rows of a sweep: a list that shows their table."""

    def table(self) -> "DataFrame":
        """The table as a pandas DataFrame, indexed by the rows' names; nothing is rounded."""
        from pandas import DataFrame

        return DataFrame(_values(self), index=[row.name for row in self], columns=_columns(self))

    def __repr__(self) -> str:
        return as_text(self) if self else "[]"

    def _repr_html_(self) -> str:
        return html_table(_all_cells(self))


def as_text(rows: Sequence[Row]) -> str:
    """A table with aligned columns, for a terminal."""
    lines = aligned(_all_cells(rows))
    return "\n".join([*lines, *_legend(rows)])


def as_text_with_differences(rows: Sequence[Row]) -> str:
    """`as_text`, and a table of the differences from the first row."""
    tests = differences(rows)
    below = ["", *aligned(difference_cells(tests))] if tests else []
    return "\n".join([as_text(rows), *below])


def as_markdown(rows: Sequence[Row]) -> str:
    """A table in Markdown, and one of the differences from the first row."""
    tables = [_all_cells(rows)]
    tests = differences(rows)
    if tests:
        tables.append(difference_cells(tests))
    return "\n\n".join([*map(markdown_table, tables), *_legend(rows)])


def as_latex(rows: Sequence[Row]) -> str:
    """A table in LaTeX with the rules of booktabs: names and metrics, without sizes and times; and
    one of the differences from the first row."""
    num_columns = 1 + len(_trial_columns(rows)) + len(_metrics(rows))
    tables = [[line[:num_columns] for line in _all_cells(rows)]]
    tests = differences(rows)
    if tests:
        tables.append(difference_cells(tests))
    legend = "".join(f"\n% {line}" for line in _legend(rows))
    return "\n\n".join(map(latex_table, tables)) + legend


def as_csv(rows: Sequence[Row]) -> str:
    """A table in CSV, with all digits; mean and deviation have columns of their own."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["row", *_columns(rows)])
    for row, (*values, speed, seconds) in zip(rows, _values(rows), strict=True):
        shown = ["" if value != value else value for value in values]  # NaN
        writer.writerow([row.name, *shown, round(speed), round(seconds)])
    return out.getvalue()


def differences(rows: Sequence[Row]) -> list[SeedTest]:
    """Tests of each metric of each row against the first row, corrected for their number.

    Trials of a search that were trained for other steps than the first are left out.
    """
    rows = [row for row in rows if row.steps == rows[0].steps]
    if len(rows) < 2:
        return []
    return [
        test
        for metric in _metrics(rows)
        for test in compare_seeds(metric, {row.name: row.finite(metric) for row in rows})
    ]


def figure_labels(rows: Sequence[Row]) -> list[str]:
    """Names of rows in a figure: those of trials are their values, if these differ."""
    short = _trial_columns(rows)
    labels = [
        ", ".join(f"{short[name]}={_cell(value)}" for name, value in row.values.items()) or row.name
        for row in rows
    ]
    return labels if len(set(labels)) == len(rows) else [row.name for row in rows]


def _legend(rows: Sequence[Row]) -> list[str]:
    """A line on the marks, if a difference was tested."""
    if not differences(rows):
        return []
    return [
        f"{MARK} differs from {shown_name(rows[0].name)} (Welch over seeds, Holm-corrected, 0.05)"
    ]


def _columns(rows: Sequence[Row]) -> list[str]:
    tested = {test.metric for test in differences(rows)}
    statistics = [
        f"{name}_{statistic}"
        for name in _metrics(rows)
        for statistic in ("mean", "deviation", *(_TEST_COLUMNS if name in tested else ()))
    ]
    return [*_trial_columns(rows), *statistics, "seeds", "parameters", "tokens_per_s", "seconds"]


def _values(rows: Sequence[Row]) -> list[list[Any]]:
    """The numbers of each row, and the values of trials, in the order of `_columns`."""
    tests = {(test.name, test.metric): test for test in differences(rows)}
    tested = {metric for _, metric in tests}

    def measured(row: Row, name: str) -> list[float]:
        values = [row.mean(name), row.deviation(name)]
        return values + (_test_values(tests.get((row.name, name))) if name in tested else [])

    trials = _trial_columns(rows)
    return [
        [
            *(_trial_value(row, name) for name in trials),
            *(value for name in _metrics(rows) for value in measured(row, name)),
            *(row.seeds, row.parameters, row.tokens_per_s, row.seconds),
        ]
        for row in rows
    ]


def _test_values(test: SeedTest | None) -> list[float]:
    """The numbers of a test, in the order of `_TEST_COLUMNS`; NaN for what was not tested."""
    if test is None:
        return [math.nan] * len(_TEST_COLUMNS)
    difference = test.difference
    seeds_to_decide = math.nan if test.seeds_to_decide is None else test.seeds_to_decide
    return [difference.mean, difference.low, difference.high, test.p_adjusted, seeds_to_decide]


def _trial_columns(rows: Sequence[Row]) -> dict[str, str]:
    """Columns of trials, {"section.field": its name in a table}, and "steps"; else empty."""
    fields = list(dict.fromkeys(name for row in rows for name in row.values))
    names = [field.rpartition(".")[2] for field in fields]
    columns = {
        field: name if names.count(name) == 1 else field
        for field, name in zip(fields, names, strict=True)
    }
    if fields:
        columns["steps"] = "steps"
    return columns


def _trial_value(row: Row, column: str) -> Any:
    return row.steps or "" if column == "steps" else row.values.get(column, "")


def _cell(value: Any) -> str:
    return shown_name(f"{value:g}" if isinstance(value, float) else str(value))


def _metrics(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.metrics))


def _header(rows: Sequence[Row]) -> list[str]:
    names = [*_trial_columns(rows).values(), *_metrics(rows)]
    return ["", *map(shown_name, names), "seeds", "parameters", "tokens/s", "time"]


def _all_cells(rows: Sequence[Row]) -> list[list[str]]:
    """The header, and the cells of each row."""
    names = _metrics(rows)
    marked = {(test.name, test.metric) for test in differences(rows) if test.differs}
    trials = _trial_columns(rows)
    return [_header(rows), *(_cells(row, trials, names, marked) for row in rows)]


def _cells(
    row: Row,
    trials: Collection[str],
    names: Sequence[str],
    marked: Collection[tuple[str, str]],
) -> list[str]:
    values = [_cell(_trial_value(row, column)) for column in trials]
    metrics = [
        shown_mean(row.metrics.get(name, ())) + (f" {MARK}" if (row.name, name) in marked else "")
        for name in names
    ]
    return [
        shown_name(row.name),
        *values,
        *metrics,
        str(row.seeds),
        f"{row.parameters:,}",
        f"{row.tokens_per_s:,.0f}",
        f"{row.seconds / 60:.1f} min",
    ]
