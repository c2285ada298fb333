# SPDX-License-Identifier: Apache-2.0
"""The set `table`: rows with columns, in CSV, tab-separated, JSON-lines or Parquet files, or in a
DataFrame. `data.text_field`, `data.pair_field` and `data.label_field` name the columns of texts and
their labels, `data.source_language` and `data.target_language` those of pairs."""

import dataclasses
import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example
from transformer_jax.data.files.lines import open_files
from transformer_jax.data.files.rows import (
    OBJECT_ENDINGS,
    Rows,
    has_ending,
    open_columns,
    open_rows,
    select_rows,
    text_of,
)
from transformer_jax.errors import UserError
from transformer_jax.ranges import short_repr
from transformer_jax.runtime.files import atomic_writer, cache_folder
from transformer_jax.suggestions import suggest

_FIELDS = {
    "text": "text_field",
    "pair": "pair_field",
    "label": "label_field",
    "source": "source_language",
    "target": "target_language",
}
"""Key of an example -> the field of the section `data` that names its column."""
_PAIR = ("source", "target")


def open_table(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of `table`, one corpus per file; errors as of `read_table`."""

    def read(path: str) -> Corpus:
        rows = open_rows(path) if has_ending(path, OBJECT_ENDINGS) else open_columns(path)
        if Path(path).parent == _frames_folder():
            rows = dataclasses.replace(rows, name=f"data[{split!r}]")
        return read_table(rows, named_columns(config), split, config.on_bad_row)

    return open_files(config, split, read)


def read_table(
    rows: Rows, columns: Mapping[str, str | None], split: str = "all", on_bad_row: str = "stop"
) -> Corpus:
    """The examples {key: text} of rows.

    Args:
      columns: key of an example -> name of its column; None: the column with the name of the key,
        if there is one.
      split, on_bad_row: as for `select_rows`.

    Raises:
      UserError: there is no such column, or a row has no text or no label there.
    """
    present = find_columns(rows.name, rows.column_names(), columns)
    return select_rows(rows, partial(example_of, present), split, on_bad_row)


def find_columns(
    name: str, names: Sequence[str], columns: Mapping[str, str | None]
) -> dict[str, str]:
    """The column of each key that the examples of a table have.

    Args:
      name: of the table, for messages.
      names: of its columns; empty if it has no row.
      columns: as for `read_table`.

    Raises:
      UserError: there is no such column.
    """
    present = {key: column or key for key, column in columns.items() if column or key in names}
    for key, column in present.items():
        if names and column not in names:
            raise UserError(
                f"{name} has no column {column!r} (data.{_FIELDS[key]}); its columns are "
                f"{', '.join(map(repr, names))}{suggest(column, names)}"
            )
    return present


def stored_tables(tables: Mapping[str, Any]) -> dict[str, str]:
    """Writes the table of each split to the user's cache, as Parquet, and returns the fields of the
    config that name them.

    Args:
      tables: split -> a DataFrame, or columns or rows that pandas makes one of.

    Raises:
      UserError: there is no such split, or no table with named columns can be made.
    """
    if not isinstance(tables, Mapping):
        raise UserError('data: give a table for each split: data={"train": table, "valid": table}')
    fields = {"data.name": "table"}
    for split, table in tables.items():
        if split not in ("train", "valid", "test"):
            raise UserError(f"data: there is no split {split!r}; they are train, valid and test")
        fields[f"data.{split}_text"] = str(_stored(table, split))
    return fields


def _stored(table: Any, split: str) -> Path:
    import pandas as pd

    try:
        frame = pd.DataFrame(table)
        content = frame.to_parquet(index=False)
    except (ValueError, TypeError, OverflowError) as error:  # pyarrow's errors are ValueErrors too
        raise UserError(f"data: {split!r} is no table: {error}") from error
    if isinstance(frame.columns, pd.RangeIndex):
        raise UserError(
            f"data: the columns of {split!r} have no names; a dict of columns names them, such as "
            '{"text": texts, "label": labels}'
        )
    folder = _frames_folder()
    path = folder / f"{split}-{hashlib.sha256(content).hexdigest()[:32]}.parquet"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_writer(path) as file:
            file.write(content)
    return path


def _frames_folder() -> Path:
    return cache_folder("tables") or Path(tempfile.gettempdir(), "transformer_jax_tables")


def pair_columns(config: DataConfig) -> dict[str, str]:
    """Column, or language, of each side of pairs; empty if the examples are not pairs.

    Raises:
      UserError: only one side is named, or columns of other examples are.
    """
    columns = {side: getattr(config, f"{side}_language") for side in _PAIR}
    if not any(columns.values()):
        return {}
    for name in ("text_field", "label_field", "pair_field"):
        if getattr(config, name) is not None:
            raise UserError(
                f"data.{name} is not read if {config.name} has languages; leave one out"
            )
    if not all(columns.values()):
        raise UserError(
            f"{config.name} needs data.source_language and data.target_language together; one of "
            "them is not set"
        )
    return columns


def named_columns(config: DataConfig) -> Mapping[str, str | None]:
    """The column that the config names for each key of an example; raises as `pair_columns`."""
    names = {"text": config.text_field or "text", "pair": config.pair_field}
    return pair_columns(config) or {**names, "label": config.label_field}


def example_of(columns: Mapping[str, str], row: Any) -> Example:
    """Example of a row, {key: text of its column}; ValueError if the row lacks a column or a label,
    or a text is none."""
    cells = row if isinstance(row, Mapping) else {}
    example = {}
    for key, column in columns.items():
        if column not in cells:
            names = ", ".join(map(str, cells)) or "none"
            raise ValueError(
                f"no {key} in the column {column!r} (columns: {names}); set data.{_FIELDS[key]}"
            )
        value = cells[column]
        if key == "label":
            example[key] = _label(value, column)
        else:
            example[key] = text_of(value, f"the column {column!r}")
    return example


def _label(value: Any, column: str) -> str:
    """A label as text; ValueError if there is none, or a number that is not whole."""
    is_number = isinstance(value, float)
    if value is None or value != value or not str(value).strip():
        raise ValueError(f"no label in the column {column!r}; write one, or read another split")
    if is_number and not value.is_integer() or not isinstance(value, str | int | float):
        raise ValueError(
            f"the column {column!r} is {short_repr(value)}; a label is a text or a whole number"
        )
    return str(int(value) if is_number else value)
