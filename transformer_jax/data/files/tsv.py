"""Tab-separated files of labelled texts: the user's own, and those of public sets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transformer_jax.data.examples import Corpus, Example, Parsed, Selection
from transformer_jax.data.files.text import TextLines, blocks
from transformer_jax.data.files.trees import read_trees
from transformer_jax.errors import UserError


@dataclass(frozen=True)
class TsvColumns:
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


def _own(*columns: str) -> TsvColumns:
    return TsvColumns(columns, dict(zip(columns, columns, strict=True)))


OWN_LAYOUTS = (_own("text", "label"), _own("text", "pair", "label"))
"""The layouts of `labeled_tsv`."""


def read_labeled_tsv(path: str) -> Corpus:
    """`read_labeled` of the user's own file."""
    return read_labeled(path, OWN_LAYOUTS)


def read_labeled(path: str, layouts: Sequence[TsvColumns]) -> Corpus:
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


def _layout_of(lines: TextLines, layouts: Sequence[TsvColumns]) -> TsvColumns:
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


def _check(lines: TextLines, i: int, layout: TsvColumns) -> None:
    count = lines.line_bytes(i).count(b"\t") + 1
    if count != len(layout.columns):
        raise UserError(
            f"{lines.path}, line {i + 1}: {count} columns; "
            f"expected {layout}, {len(layout.columns)} of them"
        )
    if not layout.parse(lines[i])["label"].strip():
        raise UserError(f"{lines.path}, line {i + 1}: no label")


# FOLDED data.files.tagged: Files of words with a tag each: the user's own in columns, and trees in
# brackets. An example is {"text": words, "tags": tags}, with one space between two words and two
# tags: word i of `text.split(" ")` has tag i of `tags.split(" ")`.


def read_tagged_words(path: str) -> Corpus:
    """The sentences of a file of lines WORD<tab>TAG, with blank lines between sentences.

    Raises:
      UserError: the file cannot be read or has no sentence, or a line is of another form (the first
        one is named).
    """
    lines = TextLines(path)
    places = blocks(lines)
    if not len(places):
        raise UserError(f"{path} has no sentence: every line of it is blank")
    for start, stop in places:
        for i in range(start, stop):
            _check_tags(lines, i)
    return Parsed(
        range(len(places)),
        lambda sentence: _example(lines[i].split("\t") for i in range(*places[sentence])),
    )


def read_tagged_trees(path: str) -> Corpus:
    """The words and part-of-speech tags of a file of trees in brackets; raises as `read_trees`."""
    return read_trees(path, lambda tree: _example(tree.leaves()))


def _check_tags(lines: TextLines, i: int) -> None:
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


def _example(tagged: Iterable[Sequence[str]]) -> Example:
    """The example of (word, tag), ..."""
    words, tags = zip(*tagged, strict=True)
    return {"text": " ".join(words), "tags": " ".join(tags)}
