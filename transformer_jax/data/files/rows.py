# SPDX-License-Identifier: Apache-2.0
"""Rows of data sets: how files hold them, which ones are left out, and which ones are errors.

One rule for files (JSON lines, JSON arrays, Parquet, tab-separated), text in blocks, `hf_dataset`
and `tfds`:

- A row whose text is null or blank has no text. Training leaves it out; evaluation leaves out
  documents of running text, and keeps any other row with an empty text.
- Training leaves out rows that have nothing to learn, such as an empty answer.
- Any other row that is not as the set demands (a missing field, a number instead of text, a key
  that is not read) is an error that names file and row, or is left out with
  `data.on_bad_row=skip`.

What is left out is counted and logged. Blank lines between JSON lines are no rows, and a byte order
mark at the start of a JSON line is dropped.
"""

import contextlib
import csv
import io
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from transformer_jax.conversations import NothingToLearn
from transformer_jax.data.examples import Corpus, Example, Parsed, RandomAccess, Selection
from transformer_jax.data.files.lines import TextLines
from transformer_jax.errors import UserError, reason_of
from transformer_jax.ranges import short_repr

logger = logging.getLogger(__name__)

type Convert = Callable[[Any], Example]
"""Converts a row to an example. Raises ValueError if the row is invalid, and `NothingToLearn` if
training may leave it out."""

OBJECT_ENDINGS = (".jsonl", ".json", ".parquet")
COLUMN_ENDINGS = (".csv", ".tsv")
_DELIMITERS = ",;\t|"
_QUOTED_CELL = re.compile(rb'(?<![^\t\n])"(?:[^"\t\n]|"")*"(?![^\t\r\n])')
_QUOTES_LOOKED_AT = 2**20  # bytes
_ROWS_AT_ONCE = 1000
_TEXTS = ("source", "target", "text", "pair")
"""Fields of an example that contain text."""


@dataclass(frozen=True)
class Rows:
    """Rows of a file or data set.

    Attributes:
      items: the sequence of rows; iteration reads them faster than access by index.
      name: name of the file or set, for messages.
      unit: what a row is in messages: "line" or "row".
      numbers: int [N], number of each row in the file; None: 1 to N.
      parse: converts an item to the row's value.
      columns: names of the columns, if all rows have the same.
    """

    items: Any
    name: str
    unit: str = "row"
    numbers: np.ndarray | None = None
    parse: Callable[[Any], Any] | None = None
    columns: Sequence[str] | None = None

    def column_names(self) -> list[str]:
        """Names of the columns, or the keys of all objects; empty if no row is one."""
        if self.columns is not None:
            return list(self.columns)
        names: dict[str, None] = {}
        for item in self.items:
            with contextlib.suppress(ValueError):
                row = self.parse(item) if self.parse else item
                names |= dict.fromkeys(row if isinstance(row, Mapping) else ())
        return list(names)

    def where(self, index: int) -> str:
        number = index + 1 if self.numbers is None else self.numbers[index]
        return f"{self.unit} {number}"


@dataclass
class RowFilter:
    """Applies the rule for rows.

    Attributes:
      name: name of the file or set.
      split: the split that is read.
      on_bad_row: as `data.on_bad_row`.
      left_out: reason -> number of rows left out, and the first one of them.
    """

    name: str
    split: str
    on_bad_row: str = "stop"
    left_out: dict[str, tuple[int, str]] = field(default_factory=dict)

    def keep(
        self, rows: Iterable[Any], convert: Convert, where: Callable[[int], str]
    ) -> Iterator[tuple[int, Example]]:
        """Yields the index and the example of each row that is kept.

        Raises:
          UserError: a row is invalid.
        """
        for index, row in enumerate(rows):
            try:
                example = convert(row)
            except ValueError as error:
                self._leave_out(error, where(index))
                continue
            if self._lacks_text(example):
                self._count("no text", where(index))
            else:
                yield index, example

    def report(self, count: int, level: int = logging.WARNING) -> None:
        """Logs what was left out of `count` rows."""
        for reason, (number, first) in self.left_out.items():
            message = "left out %d of %d rows of %s: %s (the first: %s)"
            logger.log(level, message, number, count, self.name, reason, first)

    def _leave_out(self, error: ValueError, where: str) -> None:
        if isinstance(error, NothingToLearn) and self.split == "train":
            self._count("nothing to learn", f"{where}: {error}")
        elif self.on_bad_row == "skip":
            self._count("not as the set demands, data.on_bad_row=skip", f"{where}: {error}")
        else:
            raise UserError(f"{self.name}, {where}: {error}") from error

    def _lacks_text(self, example: Example) -> bool:
        if self.split != "train" and example.keys() != {"text"}:
            return False
        return any(not example[name].strip() for name in _TEXTS if name in example)

    def _count(self, reason: str, first: str) -> None:
        number, first = self.left_out.get(reason, (0, first))
        self.left_out[reason] = (number + 1, first)


def select_rows(rows: Rows, convert: Convert, split: str, on_bad_row: str = "stop") -> Corpus:
    """Examples of the rows that the rule for rows keeps (see the module).

    Args:
      split: the split that is read; "train" leaves out more.
      on_bad_row: "stop" at an invalid row, or "skip" it.

    Raises:
      UserError: a row is invalid (the first one is named), or none is left.
    """
    convert = partial(_parsed, rows.parse, convert) if rows.parse else convert
    row_filter = RowFilter(rows.name, split, on_bad_row)
    examples = row_filter.keep(rows.items, convert, rows.where)
    indices = np.fromiter((index for index, _ in examples), np.int64)
    row_filter.report(len(rows.items))
    if not len(indices):
        left_out = row_filter.left_out.items()
        reasons = "; ".join(f"{reason}, {first}" for reason, (_, first) in left_out)
        raise UserError(
            f"{rows.name} has no {rows.unit} to learn from ({reasons or 'it is empty'})"
        )
    return Selection(Parsed(rows.items, convert), indices)


def _parsed(parse: Callable[[Any], Any], convert: Convert, item: Any) -> Example:
    return convert(parse(item))


def text_of(value: Any, name: str) -> str:
    """Text of a row's field; null is empty.

    Raises:
      ValueError: the value has another type.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{name} is {short_repr(value)}, not text")
    return value


def has_ending(path: str, endings: tuple[str, ...]) -> bool:
    """Returns True if a file, plain, .gz or .zst, has one of these endings."""
    return path.removesuffix(".gz").removesuffix(".zst").endswith(endings)


def open_rows(path: str) -> Rows:
    """Opens a file with one object per row: JSON lines or a JSON array, CSV (.csv) or
    tab-separated columns (.tsv), each plain, .gz or .zst; or Parquet (.parquet).

    Raises:
      UserError: the file cannot be read, or is none of its kind.
    """
    if path.endswith(".parquet"):
        parquet = ParquetTable.open(path)
        return Rows(parquet, path, columns=parquet.table.column_names)
    if has_ending(path, COLUMN_ENDINGS):
        return open_columns(path)
    lines = TextLines(path)
    indices = np.flatnonzero(~lines.blank_mask())
    if len(indices) and lines[int(indices[0])].lstrip().startswith("["):
        return Rows(_read_array(lines), path)
    return Rows(Selection(lines, indices), path, "line", indices + 1, parse_json)


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    json_object = dict(pairs)
    if len(json_object) < len(pairs):
        raise ValueError("an object has the same key twice")
    return json_object


def parse_json(text: str) -> Any:
    """Parses JSON, after a byte order mark if there is one; ValueError if it is not JSON."""
    try:
        return json.loads(text.removeprefix("\ufeff"), object_pairs_hook=_object_of)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is no JSON ({error})") from error


def _read_array(lines: TextLines) -> Sequence[Any]:
    """Objects of a JSON array, which is read as a whole; UserError if it is none."""
    try:
        array: Sequence[Any] = parse_json(lines.text())
    except ValueError as error:
        raise UserError(
            f"{lines.path} begins as a JSON array, but {error}; write an array of objects, or one "
            "object per line"
        ) from error
    return array


def open_columns(path: str, names: Sequence[str] = (), delimiter: str | None = None) -> Rows:
    """Opens lines of separated columns, plain, .gz or .zst; a row is {name: text}.

    CSV may quote a cell with `"`, also around line ends; between tabs there is no quoting.

    Args:
      names: of the columns; if empty, the first line has them.
      delimiter: between columns; None: a tab in .tsv, else what the first line has most of.

    Raises:
      UserError: the file cannot be read, or a quote is not closed.
    """
    lines = TextLines(path)
    if delimiter is None:
        delimiter = "\t" if has_ending(path, (".tsv",)) else max(_DELIMITERS, key=lines[0].count)
    ranges = _line_ranges(lines, delimiter)
    if delimiter == "\t" and _looks_quoted(lines):
        logger.warning(
            '%s: its cells are written in quotes, "so ""quoted""", and are read with them: between '
            "tabs there is no quoting; write it as .csv with commas, or without quotes",
            path,
        )
    if not len(ranges):
        raise UserError(f"{path} has no columns: all its lines are blank")
    if not names:
        names = _cells(lines, delimiter, ranges[0])
        ranges = ranges[1:]
    if len(set(names)) < len(names):
        raise UserError(f"{path}: two columns have the same name: {', '.join(names)}")
    parse = partial(_columns_of, lines, delimiter, tuple(names))
    return Rows(ranges, path, "line", ranges[:, 0] + 1, parse, names)


def _looks_quoted(lines: TextLines) -> bool:
    """Returns True if all quotes of the first lines are those of CSV, some around others."""
    text = bytes(lines.content[:_QUOTES_LOOKED_AT])
    cells = _QUOTED_CELL.findall(text)
    is_quoted = sum(cell.count(b'"') for cell in cells) == text.count(b'"')
    return is_quoted and any(b'""' in cell[1:-1] for cell in cells)


def _line_ranges(lines: TextLines, delimiter: str) -> np.ndarray:
    """Ranges of lines that hold a row each, int64 [N, 2]; blank lines of CSV are no rows."""
    if delimiter == "\t":
        return np.arange(len(lines))[:, None] + [0, 1]
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    ranges = []
    start = 0
    try:
        for cells in reader:
            if cells:
                ranges.append((start, reader.line_num))
            start = reader.line_num
    except csv.Error as error:
        raise UserError(f"{lines.path}, line {start + 1}: {error}") from error
    return np.array(ranges)


def _cells(lines: TextLines, delimiter: str, line_range: np.ndarray) -> list[str]:
    if delimiter == "\t":
        return lines[int(line_range[0])].split(delimiter)
    return next(csv.reader(io.StringIO(lines.text(*line_range), newline=""), delimiter=delimiter))


def _columns_of(
    lines: TextLines, delimiter: str, names: Sequence[str], line_range: np.ndarray
) -> dict[str, str]:
    cells = _cells(lines, delimiter, line_range)
    if len(cells) != len(names):
        raise ValueError(
            f"{len(cells)} columns; expected {len(names)}: {', '.join(map(repr, names))}"
        )
    return dict(zip(names, cells, strict=True))


@dataclass(frozen=True, repr=False)
class ParquetTable(RandomAccess[Any]):
    """Rows of a Parquet file as dicts.

    Attributes:
      path: the file.
      table: a `pyarrow.Table`.
    """

    path: str
    table: Any

    @classmethod
    def open(cls, path: str) -> "ParquetTable":
        """Maps a file into memory.

        Raises:
          UserError: it is not a Parquet file, or cannot be read.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return cls(path, pq.read_table(path, memory_map=True))
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"cannot read {path} as Parquet: {reason_of(error)}") from error

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def item(self, index: int) -> Any:
        return self.table.slice(index, 1).to_pylist()[0]

    def __iter__(self) -> Iterator[Any]:
        try:
            for batch in self.table.to_batches(max_chunksize=_ROWS_AT_ONCE):
                yield from batch.to_pylist()
        except UnicodeDecodeError as error:
            raise UserError(f"{self.path} has text that is not UTF-8 ({error.reason})") from error
