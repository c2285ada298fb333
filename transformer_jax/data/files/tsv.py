# SPDX-License-Identifier: Apache-2.0
"""Tab-separated files: labeled texts, and tagged words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transformer_jax.data.examples import Corpus, Example, Parsed, Selection
from transformer_jax.data.files.lines import TextLines, paragraphs
from transformer_jax.data.files.rows import Rows, select_rows
from transformer_jax.errors import UserError


@dataclass(frozen=True)
class TsvColumns:
    """Columns of a tab-separated file. There is no quoting.

    Attributes:
      columns: names of the columns.
      fields: field of an example ("text", "label", optionally "pair") -> name of its column.
      has_header: the first line of the file contains the names.
    """

    columns: tuple[str, ...]
    fields: Mapping[str, str]
    has_header: bool = True

    def __str__(self) -> str:
        return "<tab>".join(self.columns)

    def parse(self, line: str) -> Example:
        """Example of a line.

        Raises:
          ValueError: a wrong number of columns, or no label.
        """
        cells = line.split("\t")
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} columns; expected {self}, {len(self.columns)} of them")
        values = dict(zip(self.columns, cells, strict=True))
        if not values[self.fields["label"]].strip():
            raise ValueError("no label")
        return {field: values[column] for field, column in self.fields.items()}


def _same_names(*columns: str) -> TsvColumns:
    return TsvColumns(columns, dict(zip(columns, columns, strict=True)))


LABELED_TSV_LAYOUTS = (_same_names("text", "label"), _same_names("text", "pair", "label"))
"""Layouts of the set `labeled_tsv`."""


def read_labeled(
    path: str,
    split: str = "all",
    on_bad_row: str = "stop",
    layouts: Sequence[TsvColumns] = LABELED_TSV_LAYOUTS,
) -> Corpus:
    """Reads the examples {"text", "label"} or {"text", "pair", "label"} of a file.

    Args:
      path: UTF-8 file, plain, .gz or .zst.
      split, on_bad_row: as for `select_rows`.
      layouts: accepted layouts; the header of the file selects one.

    Raises:
      UserError: the file cannot be read, has another header or no example, or a line has a wrong
        number of columns or no label (as `select_rows`).
    """
    lines = TextLines(path)
    layout = _find_layout(lines, layouts)
    numbers = np.arange(int(layout.has_header), len(lines))
    if not len(numbers):
        raise UserError(f"{path} has no example after its header")
    rows = Rows(Selection(lines, numbers), path, "line", numbers + 1)
    return select_rows(rows, layout.parse, split, on_bad_row)


def _find_layout(lines: TextLines, layouts: Sequence[TsvColumns]) -> TsvColumns:
    header = tuple(lines[0].split("\t"))
    for layout in layouts:
        if not layout.has_header or layout.columns == header:
            return layout
    text = "<tab>".join(header)
    shortened = text if len(text) <= 80 else f"{text[:80]}..."
    raise UserError(
        f"{lines.path}: the header is {shortened!r}; "
        f"expected {' or '.join(map(str, layouts))}, separated by tabs"
    )


def read_tagged_words(path: str) -> Corpus:
    """Reads sentences from lines WORD<tab>TAG, with blank lines between sentences.

    Raises:
      UserError: the file cannot be read or has no sentence, or a line has another form; the first
        one is named.
    """
    lines = TextLines(path)
    sentences = paragraphs(lines)
    if not len(sentences):
        raise UserError(f"{path} has no sentence: all its lines are blank")
    for start, stop in sentences:
        for i in range(start, stop):
            _check_tagged(lines, i)
    return Parsed(
        range(len(sentences)),
        lambda index: tagged_example(lines[i].split("\t") for i in range(*sentences[index])),
    )


def tagged_example(pairs: Iterable[Sequence[str]]) -> Example:
    """Example {"text": words, "tags": tags} of (word, tag) pairs, separated by single spaces."""
    words, tags = zip(*pairs, strict=True)
    return {"text": " ".join(words), "tags": " ".join(tags)}


def _check_tagged(lines: TextLines, i: int) -> None:
    columns = lines[i].split("\t")
    if len(columns) != 2:
        problem = f"{len(columns)} columns"
    elif not all(columns):
        problem = "no word" if not columns[0] else "no tag"
    elif any(" " in column for column in columns):
        problem = "a space within a word or tag"
    else:
        return
    raise UserError(f"{lines.path}, line {i + 1}: {problem}; write word<tab>tag, two columns")
