# SPDX-License-Identifier: Apache-2.0
"""Tables of experiments: mean and deviation over seeds, as text, Markdown and CSV."""

import csv
import dataclasses
import html
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from transformer_jax.errors import escape_controls

if TYPE_CHECKING:
    from pandas import DataFrame


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

    Raises:
      ValueError: a value has the wrong type, which happens with rows that are read from a file.
    """

    name: str
    metrics: Mapping[str, Sequence[float | None]]
    parameters: int
    tokens_per_s: float
    seconds: float

    def __post_init__(self) -> None:
        numbers = [self.parameters, self.tokens_per_s, self.seconds]
        numbers += [value for each in self.metrics.values() for value in each if value is not None]
        if not (self.metrics and all(isinstance(number, int | float) for number in numbers)):
            raise ValueError("a row has metrics, and they are numbers")

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(next(iter(self.metrics.values())))

    def finite(self, metric: str) -> list[float]:
        """Values of a metric that are finite numbers."""
        values = self.metrics.get(metric, [])
        return [value for value in values if value is not None and math.isfinite(value)]

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
        cells = [_header(self), *(_cells(row, _metrics(self)) for row in self)]
        lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in line) for line in cells)
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def as_text(rows: Sequence[Row]) -> str:
    """A table with aligned columns, for a terminal."""
    cells = [_header(rows), *(_cells(row, _metrics(rows)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for name, *values in cells:
        padded = [value.rjust(width) for value, width in zip(values, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *padded]).rstrip())
    return "\n".join(lines)


def as_markdown(rows: Sequence[Row]) -> str:
    """A table in Markdown."""
    header = _header(rows)
    rule = ["---", *["---:"] * (len(header) - 1)]
    lines = [header, rule, *(_cells(row, _metrics(rows)) for row in rows)]
    escaped = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def as_csv(rows: Sequence[Row]) -> str:
    """A table in CSV, with all digits; mean and deviation have columns of their own."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["row", *_columns(rows)])
    for row, (*values, speed, seconds) in zip(rows, _values(rows), strict=True):
        shown = ["" if math.isnan(value) else value for value in values]
        writer.writerow([row.name, *shown, round(speed), round(seconds)])
    return out.getvalue()


def _columns(rows: Sequence[Row]) -> list[str]:
    statistics = [f"{name}_{what}" for name in _metrics(rows) for what in ("mean", "deviation")]
    return [*statistics, "seeds", "parameters", "tokens_per_s", "seconds"]


def _values(rows: Sequence[Row]) -> list[list[float]]:
    """The numbers of each row, in the order of `_columns`."""
    return [
        [
            *(value for name in _metrics(rows) for value in (row.mean(name), row.deviation(name))),
            *(row.seeds, row.parameters, row.tokens_per_s, row.seconds),
        ]
        for row in rows
    ]


def _metrics(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.metrics))


def _header(rows: Sequence[Row]) -> list[str]:
    return ["", *map(_shown, _metrics(rows)), "seeds", "parameters", "tokens/s", "time"]


def _cells(row: Row, names: Sequence[str]) -> list[str]:
    metrics = [_metric(row, name) for name in names]
    size, speed = f"{row.parameters:,}", f"{row.tokens_per_s:,.0f}"
    name, time = _shown(row.name), f"{row.seconds / 60:.1f} min"
    return [name, *metrics, str(row.seeds), size, speed, time]


def _shown(name: str) -> str:
    """A user's name on one line, without control characters."""
    return escape_controls(" ".join(name.split()))


def _metric(row: Row, name: str) -> str:
    """Mean ± deviation, with four significant digits of the mean, and how many seeds diverged."""
    values, count = row.finite(name), len(row.metrics.get(name, []))
    lost = sum(v is not None and not math.isfinite(v) for v in row.metrics.get(name, []))
    note = f" ({lost} of {count} diverged)" if lost else ""
    if not values:
        return note.strip() or "-"
    mean, deviation = row.mean(name), row.deviation(name)
    digits = max(0, 3 - math.floor(math.log10(abs(mean)))) if mean else 3
    if math.isnan(deviation):
        return f"{mean:.{digits}f}{note}"
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}{note}"
