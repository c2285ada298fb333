"""Tab-separated files of labelled texts: the user's own, and those of public sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transformer_jax.data.examples import Corpus, Example, Parsed, Selection
from transformer_jax.data.files.text import TextLines
from transformer_jax.errors import UserError


@dataclass(frozen=True)
class Layout:
    """What the columns of a file hold. No character quotes another.

    Attributes:
      columns: their names.
      fields: "text", "label" and, perhaps, "pair" -> the name of the column.
      has_header: whether the file's first line is the names.
    """

    columns: tuple[str, ...]
    fields: Mapping[str, str]
    has_header: bool = True

    def __str__(self) -> str:
        return "<tab>".join(self.columns)

    def parse(self, line: str) -> Example:
        """The example of a line that has as many columns as the layout."""
        values = dict(zip(self.columns, line.split("\t"), strict=True))
        return {field: values[column] for field, column in self.fields.items()}


def _own(*columns: str) -> Layout:
    return Layout(columns, dict(zip(columns, columns, strict=True)))


OWN_LAYOUTS = (_own("text", "label"), _own("text", "pair", "label"))
"""The layouts of `labeled_tsv`."""


def read_labeled_tsv(path: str) -> Corpus:
    """`read_labeled` of the user's own file."""
    return read_labeled(path, OWN_LAYOUTS)


def read_labeled(path: str, layouts: Sequence[Layout]) -> Corpus:
    """The examples {"text", "label"} or {"text", "pair", "label"} of a file.

    Args:
      path: a UTF-8 file, plain or gzip (by the ending .gz).
      layouts: those that it may have; its header tells which it is.

    Raises:
      UserError: the file cannot be read, has another header or no example, or a line has a wrong
        number of columns or no label (the first such line is named).
    """
    lines = TextLines(path)
    layout = _layout_of(lines, layouts)
    first = int(layout.has_header)
    for i in range(first, len(lines)):
        _check(lines, i, layout)
    if len(lines) == first:
        raise UserError(f"{path} has no example behind its header")
    return Selection(Parsed(lines, layout.parse), np.arange(first, len(lines)))


def _layout_of(lines: TextLines, layouts: Sequence[Layout]) -> Layout:
    found = tuple(lines[0].split("\t"))
    for layout in layouts:
        if not layout.has_header or layout.columns == found:
            return layout
    raise UserError(
        f"{lines.path}: the header is {_shown(found)}; "
        f"expected {' or '.join(map(str, layouts))}, tabs between"
    )


def _shown(header: Sequence[str]) -> str:
    text = "<tab>".join(header)
    return repr(text if len(text) <= 80 else f"{text[:80]}...")


def _check(lines: TextLines, i: int, layout: Layout) -> None:
    count = lines.line_bytes(i).count(b"\t") + 1
    if count != len(layout.columns):
        raise UserError(
            f"{lines.path}, line {i + 1}: {count} columns; "
            f"expected {layout}, {len(layout.columns)} of them"
        )
    if not layout.parse(lines[i])["label"].strip():
        raise UserError(f"{lines.path}, line {i + 1}: no label")
