"""The user's own text: a document is a whole file, a line or a paragraph; or a column of a row, in
files of objects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed, RandomAccess, Selection
from transformer_jax.data.files.json_lines import read_objects
from transformer_jax.data.files.text import TextLines, blocks, open_files
from transformer_jax.errors import UserError

OBJECTS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
"""Endings of files with a document a row."""


@dataclass(frozen=True)
class WholeFiles(RandomAccess[Example]):
    """Each file is one document, line ends and blank lines kept.

    A file is read when its document is asked for; only then does it take memory.

    Attributes:
      paths: UTF-8 text files, plain or compressed (by the ending, .gz or .zst).

    Raises:
      UserError: a file cannot be read, or has no text.
    """

    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        for path in self.paths:
            lines = TextLines(path)  # looked at now and let go of: many files may be named
            if not any(line.strip() for line in lines):
                raise _no_text(path)

    def __len__(self) -> int:
        return len(self.paths)

    def item(self, index: int) -> Example:
        return {"text": TextLines(self.paths[index]).text()}


def open_split(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The corpora of a split of `text`: one for each file.

    Raises:
      UserError: no file is named, or one cannot be used.
    """
    read = partial(read_documents, documents=config.documents, column=config.text_field)
    return open_files(config, split, read)


def read_documents(path: str, documents: str, column: str | None = None) -> Corpus:
    """The documents {"text": str} of one file.

    Args:
      path: UTF-8 text, plain or compressed (by the ending, .gz or .zst). Files of `OBJECTS` have a
        document a row.
      documents: one of `config.DOCUMENTS`.
      column: of a row that holds its text; None: "text".

    Raises:
      UserError: the file cannot be read, has no text, or a row has none in the column.
    """
    if path.endswith(OBJECTS):
        return read_objects(path, "all", partial(of_column, column or "text"))
    if column is not None:
        raise UserError(
            f"data.text_field is {column!r}, but {path} is no file of columns, which ends in "
            f"{', '.join(OBJECTS)}; leave it out"
        )
    if documents == "file":
        return WholeFiles((path,))
    lines = TextLines(path)
    places = blocks(lines)
    if not len(places):
        raise _no_text(path)
    if documents == "line":
        not_blank = np.concatenate([np.arange(*place) for place in places])
        return Selection(Parsed(lines, _document), not_blank)
    return Parsed(range(len(places)), partial(_paragraph, lines, places))


def of_column(column: str, row: Any) -> Example:
    """The document {"text": str} of an object; ValueError where it has no text in the column."""
    text = row.get(column) if isinstance(row, Mapping) else None
    if not isinstance(text, str):
        there = ", ".join(map(str, row)) if isinstance(row, Mapping) else "none"
        raise ValueError(
            f"no text in the column {column!r} (columns: {there}); set data.text_field"
        )
    return {"text": text}


def _document(text: str) -> Example:
    return {"text": text}


def _paragraph(lines: TextLines, places: np.ndarray, index: int) -> Example:
    return _document(lines.text(*places[index]).removesuffix("\n"))


def _no_text(path: str) -> UserError:
    return UserError(f"{path} has no text: every line of it is blank")
