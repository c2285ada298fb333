# SPDX-License-Identifier: Apache-2.0
"""Tables of experiments: mean and deviation over seeds, as text, Markdown, LaTeX and CSV, and
their files with figures.

A value that differs from that of the first row, by a test over the seeds, is marked.
"""

import dataclasses
import logging
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.errors import UserError
from transformer_jax.lab import pictures, report
from transformer_jax.lab.pictures.style import MARK, Picture
from transformer_jax.runs.workdir import CURVES, DIFFERENCES, RESULT, SWEEP, TABLE, lock_workdir
from transformer_jax.runtime.files import write_atomic
from transformer_jax.scoring.statistics import SeedTest, compare_seeds, finite
from transformer_jax.summary import aligned

if TYPE_CHECKING:
    from pandas import DataFrame

logger = logging.getLogger(__name__)

_VECTORS = ("pdf", "svg")
_SIZES = ("seeds", "parameters", "tokens_per_s", "seconds")
"""The last columns of a table."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One variant of an experiment.
    Attributes:
      metrics: name -> one value for each seed: NaN if the seed diverged, None if it has no such
        metric.
      parameters: number of parameters of the model.
      tokens_per_s: tokens that the model reads, source and target, without padding; sum over the
        seeds that trained at once.
      seconds: wall time of all seeds.
      values: of a trial of a search, {"section.field": value}.
      steps: that a trial of a search has trained.
    """

    name: str
    metrics: Mapping[str, Sequence[float | None]]
    parameters: int
    tokens_per_s: float
    seconds: float
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    steps: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tokens_per_s) and math.isfinite(self.seconds)):
            raise ValueError("tokens_per_s and seconds must be finite")

    @property
    def seeds(self) -> int:
        return len(next(iter(self.metrics.values())))

    @property
    def diverged(self) -> list[bool]:
        """For each seed, True if it diverged: all metrics that it has are NaN."""
        of_seeds = zip(*self.metrics.values(), strict=True)
        measured = [[value for value in values if value is not None] for values in of_seeds]
        return [bool(values) and all(map(math.isnan, values)) for values in measured]

    def is_complete(self, seeds: int, metrics: Sequence[str]) -> bool:
        """Returns True if the row has as many seeds, and these metrics."""
        return self.seeds >= seeds and set(metrics) <= set(self.metrics)

    def first_seeds(self, count: int) -> "Row":
        """The row with its first seeds only, and their share of the time."""
        if count >= self.seeds:
            return self
        metrics = {name: values[:count] for name, values in self.metrics.items()}
        seconds = self.seconds * count / self.seeds
        return dataclasses.replace(self, metrics=metrics, seconds=seconds)

    def measured(self, metric: str) -> list[float]:
        """Values of a metric, NaN for a seed that diverged."""
        return [value for value in self.metrics.get(metric, ()) if value is not None]

    def mean(self, metric: str) -> float:
        """Mean over the seeds that have the metric; NaN if none has."""
        values = finite(self.metrics.get(metric, ()))
        return statistics.fmean(values) if values else math.nan

    def deviation(self, metric: str) -> float:
        """Standard deviation of the sample; NaN for fewer than two seeds."""
        values = finite(self.metrics.get(metric, ()))
        return statistics.stdev(values) if len(values) > 1 else math.nan


class Rows(list[Row]):
    """The rows of a sweep: a list that shows their table."""

    def table(self) -> "DataFrame":
        """The table as a pandas DataFrame, indexed by the rows' names; nothing is rounded."""
        from pandas import DataFrame

        tests = {(test.name, test.metric): test for test in differences(self)}
        tested = {metric for _, metric in tests}
        lines = []
        for row in self:
            line = {column: _trial_value(row, column) for column in _trial_columns(self)}
            for metric in _metrics(self):
                line[f"{metric}_mean"] = row.mean(metric)
                line[f"{metric}_deviation"] = row.deviation(metric)
                if metric in tested:
                    values = _test_values(tests.get((row.name, metric)))
                    line |= {f"{metric}_{column}": value for column, value in values.items()}
            line |= {name: getattr(row, name) for name in _SIZES}
            lines.append(line)
        return DataFrame(lines, index=[row.name for row in self])

    def __repr__(self) -> str:
        return as_text(self) if self else "[]"

    def _repr_html_(self) -> str:
        return report.html_table(_cells(self))


def as_text(rows: Sequence[Row]) -> str:
    """A table with aligned columns, for a terminal."""
    return "\n".join([*aligned(_cells(rows)), *_legend(rows)])


def as_text_with_differences(rows: Sequence[Row]) -> str:
    """`as_text`, and a table of the differences from the first row."""
    tests = differences(rows)
    below = ["", *aligned(report.difference_cells(tests))] if tests else []
    return "\n".join([as_text(rows), *below])


def as_markdown(rows: Sequence[Row]) -> str:
    """A table in Markdown, and one of the differences from the first row."""
    tests = differences(rows)
    tables = [_cells(rows), *([report.difference_cells(tests)] if tests else [])]
    return "\n\n".join([*map(report.markdown_table, tables), *_legend(rows)])


def as_latex(rows: Sequence[Row]) -> str:
    """A table in LaTeX with the rules of booktabs: names and metrics, without sizes and times; and
    one of the differences from the first row."""
    tests = differences(rows)
    tables = [[line[: -len(_SIZES)] for line in _cells(rows)]]
    if tests:
        tables.append(report.difference_cells(tests))
    legend = "".join(f"\n% {line}" for line in _legend(rows))
    return "\n\n".join(map(report.latex_table, tables)) + legend


def as_csv(rows: Sequence[Row]) -> str:
    """A table in CSV, with all digits; mean and deviation have columns of their own."""
    table = Rows(rows).table()
    for name in table.columns:
        if name in ("tokens_per_s", "seconds"):
            table[name] = table[name].round().astype(int)
        elif name.endswith("_seeds_to_decide"):
            table[name] = table[name].astype("Int64")
    return str(table.to_csv(index_label="row", lineterminator="\n"))


def differences(rows: Sequence[Row]) -> list[SeedTest]:
    """Tests of each metric of each row against the first row, corrected for their number. The rows
    of a sweep have the same seeds, so that they are pairs; with other seeds the test is right, too.

    Trials of a search that were trained for other steps than the first, which is the best, are left
    out. They are corrected for the number of all pairs.
    """
    rows = [row for row in rows if row.steps == rows[0].steps]
    if len(rows) < 2:
        return []
    names = [row.name for row in rows]
    is_best_first = bool(rows[0].values)
    tests: list[SeedTest] = []
    for metric in _metrics(rows):
        measured = {row.name: row.measured(metric) for row in rows}
        tests += compare_seeds(metric, measured, names, is_best_first=is_best_first)
    return tests


def _legend(rows: Sequence[Row]) -> list[str]:
    """A line on the marks, if a difference was tested."""
    names = " or ".join(dict.fromkeys(test.difference.test for test in differences(rows)))
    if not names:
        return []
    base = report.shown_name(rows[0].name)
    return [f"{MARK} differs from {base} ({names} over seeds, Holm-corrected, 0.05)"]


def _test_values(test: SeedTest | None) -> dict[str, float]:
    """The numbers of a difference from the first row; NaN for what was not tested."""
    if test is None:
        return dict.fromkeys(("difference", "low", "high", "p_holm", "seeds_to_decide"), math.nan)
    interval = test.difference  # of 95%
    return {
        "difference": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "p_holm": test.p_adjusted,
        "seeds_to_decide": math.nan if test.seeds_to_decide is None else test.seeds_to_decide,
    }


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
    return report.shown_name(f"{value:g}" if isinstance(value, float) else str(value))


def _metrics(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.metrics))


def _cells(rows: Sequence[Row]) -> list[list[str]]:
    """The header, and the cells of each row."""
    names = _metrics(rows)
    trials = _trial_columns(rows)
    marked = {(test.name, test.metric) for test in differences(rows) if test.differs}
    header = ["", *map(report.shown_name, [*trials.values(), *names])]
    lines = [[*header, "seeds", "parameters", "tokens/s", "time"]]
    for row in rows:
        line = [report.shown_name(row.name)]
        line += [_cell(_trial_value(row, column)) for column in trials]
        for name in names:
            mark = f" {MARK}" if (row.name, name) in marked else ""
            line.append(report.shown_mean(row.metrics.get(name, ())) + mark)
        line += [str(row.seeds), f"{row.parameters:,}", f"{row.tokens_per_s:,.0f}"]
        line.append(f"{row.seconds / 60:.1f} min")
        lines.append(line)
    return lines


def write_tables(rows: Sequence[Row], workdir: Path) -> None:
    """Writes table.txt, table.md, table.tex, table.csv and table.png into a workdir.

    If the figure cannot be drawn or written, only a warning is logged.
    """
    if not rows:  # the first trials of a search may have values that do not go together
        return
    writers = {"txt": as_text_with_differences, "md": as_markdown, "tex": as_latex, "csv": as_csv}
    for ending, write in writers.items():
        write_atomic(workdir / f"{TABLE}.{ending}", write(rows).rstrip() + "\n")
    _write_figure(lambda: draw_table(rows), workdir / TABLE, ("png",))


def publish_tables(
    rows: Sequence[Row], records: Mapping[str, Mapping[str, pictures.Records]], folder: Path
) -> None:
    """Writes the tables of `write_tables` and figures as vectors (.pdf, .svg): table, curves, and
    differences if they were tested.

    `records` of each row and seed make the curves. The folder is made if it does not exist; earlier
    tables of `publish_tables` are replaced.
    Raises:
      UserError: the folder cannot be written, or it holds runs or files of others.
    """
    if any(folder.glob(f"*/{RESULT}")) or (folder / RESULT).exists():
        raise UserError(f"--to: {folder} is the folder of a sweep; choose another for the tables")
    with lock_workdir(folder, SWEEP):
        write_tables(rows, folder)
        figures = {TABLE: lambda: draw_table(rows)}
        tests = differences(rows)
        if tests:
            figures[DIFFERENCES] = lambda: pictures.draw_differences(tests, rows[0].name)
        curves = {name: list(seeds.values()) for name, seeds in records.items() if seeds}
        if curves:
            figures[CURVES] = lambda: pictures.draw_sweep_curves(curves, _metrics(rows))
        for name, draw in figures.items():
            _write_figure(draw, folder / name, _VECTORS)


def draw_table(rows: Sequence[Row]) -> Picture:
    """A figure of a table, with the marks of differences; trials are named by their values."""
    short = _trial_columns(rows)
    labels = {}
    for row in rows:
        values = [f"{short[name]}={_cell(value)}" for name, value in row.values.items()]
        labels[row.name] = ", ".join(values) or row.name
    if len(set(labels.values())) < len(rows):
        labels = {row.name: row.name for row in rows}
    tests = differences(rows)
    different = [(labels[test.name], test.metric) for test in tests if test.differs]
    return pictures.draw_sweep({labels[row.name]: row.metrics for row in rows}, different)


def _write_figure(draw: Callable[[], Picture], path: Path, endings: Sequence[str]) -> None:
    try:
        figure = draw()
        for ending in endings:
            pictures.save_figure(figure, path.with_suffix(f".{ending}"))
    except Exception as error:  # matplotlib's, of any type
        names = ", ".join(f"{path}.{ending}" for ending in endings)
        logger.warning("%s is left out, the tables are written: %s", names, error)
