# SPDX-License-Identifier: Apache-2.0
"""The set `text`: running text of the user's own files, as documents or in blocks.

A document is a whole file, a line or a paragraph, or a row of a file with columns. Documents are
tokenized before training starts. If text is larger than the disk, or remote ("s3://", "gs://",
"hf://"), training can read its files in blocks instead, each when it is needed.
"""

import contextlib
import dataclasses
import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np

from transformer_jax.buckets.bucket import as_bucket_errors, require_allowed
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed, RandomAccess, Selection
from transformer_jax.data.files.lines import (
    UNPACK,
    TextLines,
    line_content,
    open_files,
    paragraphs,
)
from transformer_jax.data.files.rows import (
    COLUMN_ENDINGS,
    OBJECT_ENDINGS,
    Convert,
    RowFilter,
    has_ending,
    open_rows,
    parse_json,
    select_rows,
)
from transformer_jax.data.files.table import example_of, find_columns
from transformer_jax.errors import UserError

_TABLES = (*OBJECT_ENDINGS, *COLUMN_ENDINGS)
"""File name endings of tables with one document per row."""

BLOCK_ENDINGS = (".txt", *OBJECT_ENDINGS)
"""File name endings of files of a hub data set that can be read in blocks."""

_reported: set[str] = set()
"""Files of whose bad rows this process has warned."""


def open_text(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of `text`, one corpus per file; the training split as `TextBlocks` if
    `config.block_megabytes` is set.

    Raises:
      UserError: no file is configured, or one cannot be used.
    """
    if config.block_megabytes is not None and split == "train":
        if not config.train_text:
            raise UserError("data.train_text is not set: text needs the path of a text file")
        return [open_blocks(config, config.train_text.split(","))]
    options = (config.documents, config.text_field, config.on_bad_row)
    return open_files(config, split, lambda path: read_documents(path, *options))


def read_documents(
    path: str, documents: str, column: str | None = None, on_bad_row: str = "stop"
) -> Corpus:
    """Reads the documents {"text": str} of one file.

    Args:
      path: UTF-8 text or a table (`_TABLES`) with a document per row, plain, .gz or .zst.
      documents: unit of a document in text, one of `config.DOCUMENTS`.
      column: column of a table that contains the text; None: "text". Other columns are not read.
      on_bad_row: as for `select_rows`.

    Raises:
      UserError: the file cannot be read, has no text, or a row is invalid.
    """
    if has_ending(path, _TABLES):
        convert = partial(example_of, {"text": column or "text"})
        return select_rows(open_rows(path), convert, "all", on_bad_row)
    _refuse_column(path, column)
    if documents == "file":
        return WholeFiles((path,))
    lines = TextLines(path)
    ranges = paragraphs(lines)
    if not len(ranges):
        raise _no_text(path)
    if documents == "line":
        not_blank = np.concatenate([np.arange(*lines_of) for lines_of in ranges])
        return Selection(Parsed(lines, _text_example), not_blank)
    return Parsed(range(len(ranges)), partial(_paragraph_example, lines, ranges))


@dataclass(frozen=True)
class WholeFiles(RandomAccess[Example]):
    """Documents that are whole files, with line ends and blank lines.

    A file is read when its document is requested, and not kept in memory.

    Attributes:
      paths: UTF-8 text files, plain, .gz or .zst.

    Raises:
      UserError: a file cannot be read, or has no text.
    """

    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        for path in self.paths:
            lines = TextLines(path)  # not kept: there may be more files than a process may open
            if not any(line.strip() for line in lines):
                raise _no_text(path)

    def __len__(self) -> int:
        return len(self.paths)

    def item(self, index: int) -> Example:
        return {"text": TextLines(self.paths[index]).text()}


def _text_example(text: str) -> Example:
    return {"text": text}


def _paragraph_example(lines: TextLines, ranges: np.ndarray, index: int) -> Example:
    return _text_example(lines.text(*ranges[index]).removesuffix("\n"))


def _refuse_column(path: str, column: str | None) -> None:
    if column is not None:
        raise UserError(
            f"data.text_field is {column!r}, but {path} has no columns (files with columns end in "
            f"{', '.join(_TABLES)}); leave it out"
        )


def _no_text(path: str) -> UserError:
    return UserError(f"{path} has no text: all its lines are blank")


@dataclass(frozen=True)
class Block:
    """Part of a file.

    Attributes:
      path: path or address of the file.
      size: size of the file in bytes.
      start, stop: range of bytes; the block has the lines that begin there. In Parquet, range of
        row groups.
      num_bytes: size of the block in the file; in Parquet, uncompressed.
    """

    path: str
    size: int
    start: int
    stop: int
    num_bytes: int


@dataclass(frozen=True, repr=False)
class TextBlocks(RandomAccess[Example]):
    """Text in blocks; as examples, {"text": str} with the text of a whole block.

    Attributes:
      blocks: the blocks.
      column: column of a table that contains the text.
      by_line: True: each non-blank line is a document; False: each file is one.
      on_bad_row: as `data.on_bad_row`.
    """

    blocks: Sequence[Block]
    column: str
    by_line: bool
    on_bad_row: str = "stop"

    def __len__(self) -> int:
        return len(self.blocks)

    def item(self, index: int) -> Example:
        return {"text": "\n".join(self.documents(index))}

    def documents(self, index: int) -> list[str]:
        """Reads the documents of a block, in order; possibly none.

        Raises:
          UserError: the file cannot be read, has changed, or has an invalid line.
        """
        block = self.blocks[index]
        with _read_errors(block.path), _open(block.path) as file:
            if file.size != block.size:
                raise UserError(
                    f"{block.path} has changed: it had {block.size} bytes when this run started; "
                    "restore it, or start a new run in another --workdir"
                )
            convert = partial(example_of, {"text": self.column})
            if block.path.endswith(".parquet"):
                return self._texts(block, _read_rows(file, block, self.column), convert)
            lines = _read_lines(file, block)
            if has_ending(block.path, OBJECT_ENDINGS):
                rows = filter(bytes.strip, lines)
                return self._texts(block, rows, lambda row: convert(parse_json(row.decode())))
            texts = map(bytes.decode, lines)
            return list(filter(str.strip, texts)) if self.by_line else ["\n".join(texts)]

    def _texts(self, block: Block, rows: Iterable[Any], convert: Convert) -> list[str]:
        """Documents of rows. Warns of bad rows that are left out once for each file; a later block
        or epoch would repeat it."""
        rows = list(rows)
        row_filter = RowFilter(block.path, "train", self.on_bad_row)
        unit = "row group" if block.path.endswith(".parquet") else "byte"
        examples = row_filter.keep(rows, convert, lambda _: f"a row after {unit} {block.start}")
        texts = [example["text"] for _, example in examples]
        level = logging.DEBUG if block.path in _reported else logging.WARNING
        if row_filter.left_out:
            _reported.add(block.path)
        row_filter.report(len(rows), level)
        return texts

    def sample(self, num_bytes: int) -> "TextBlocks":
        """Evenly spaced blocks with about `num_bytes` in total."""
        total = sum(block.num_bytes for block in self.blocks)
        share = min(1.0, num_bytes / total)
        count = max(1, round(share * len(self.blocks)))
        spread = np.linspace(0, len(self.blocks) - 1, count).astype(int)
        return dataclasses.replace(self, blocks=tuple(self.blocks[i] for i in spread))


def open_blocks(config: DataConfig, paths: Sequence[str]) -> TextBlocks:
    """Divides files into blocks of about `config.block_megabytes`.

    A compressed file, or a file that is one document, is a single block of any size. Blocks of
    Parquet files consist of whole row groups. A file that several patterns match is read once.

    Args:
      config: the section `data`.
      paths: paths or addresses of UTF-8 text (.gz and .zst too), JSON lines or Parquet, by their
        endings; "*" matches any name.

    Raises:
      UserError: a file cannot be read, or not in parts, a pattern matches no file, documents are
        paragraphs, or `config.text_field` is set for a file without columns.
    """
    assert config.block_megabytes is not None
    if config.documents == "paragraph":
        raise UserError(
            "data.documents is 'paragraph', but a paragraph may extend over two blocks; with "
            "data.block_megabytes set it to line or file"
        )
    by_line = config.documents == "line"
    size = int(config.block_megabytes * 2**20)
    blocks: list[Block] = []
    for path in dict.fromkeys(itertools.chain.from_iterable(map(_matches, paths))):
        if has_ending(path, COLUMN_ENDINGS):
            raise UserError(
                f"{path} cannot be read in blocks, as a quoted cell may have several lines; write "
                "it as .jsonl or .parquet, or leave data.block_megabytes out"
            )
        has_objects = has_ending(path, OBJECT_ENDINGS)
        if not has_objects:
            _refuse_column(path, config.text_field)
        whole = Path(path).suffix in UNPACK or not (by_line or has_objects)
        with _read_errors(path), _open(path) as file:
            blocks += _cut(path, file, math.inf if whole else size)
    return TextBlocks(tuple(blocks), config.text_field or "text", by_line, config.on_bad_row)


def _matches(pattern: str) -> list[str]:
    """Files that match a pattern, with its protocol."""
    if "*" not in pattern:
        return [pattern]
    with _read_errors(pattern):
        system, path = _file_system(pattern)
        matches = sorted(system.glob(path))
    if not matches:
        raise UserError(f"data.train_text: no file matches {pattern}")
    protocol, separator, _ = pattern.rpartition("://")
    return [f"{protocol}{separator}{match}" for match in matches]


def _file_system(path: str) -> tuple[Any, str]:
    """File system of a path or address, and the path in it."""
    if "://" not in path:
        return fsspec.filesystem("file"), path
    require_allowed(path, ("hf",))
    return fsspec.core.url_to_fs(path)


def _open(path: str) -> Any:
    system, inside = _file_system(path)
    return system.open(inside, "rb")


def _cut(path: str, file: Any, size: float) -> Iterator[Block]:
    total = file.size
    if not total:
        raise UserError(f"{path} is empty: it must contain text")
    if not path.endswith(".parquet"):
        step = int(min(size, total))
        for start in range(0, total, step):
            stop = min(start + step, total)
            yield Block(path, total, start, stop, stop - start)
        return
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(file).metadata
    first = 0
    num_bytes = 0  # of the row groups from `first` on
    for stop in range(1, metadata.num_row_groups + 1):
        num_bytes += metadata.row_group(stop - 1).total_byte_size
        if num_bytes >= size or stop == metadata.num_row_groups:
            yield Block(path, total, first, stop, num_bytes)
            first = stop
            num_bytes = 0


@contextlib.contextmanager
def _read_errors(path: str) -> Iterator[None]:
    """Converts errors of reading a file to UserError."""
    with as_bucket_errors("cannot read", path):
        try:
            yield
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8 ({error.reason}); convert it to UTF-8") from error


def _read_lines(file: Any, block: Block) -> Iterator[bytes]:
    """Lines that begin in a block, without line ends."""
    unpack = UNPACK.get(Path(block.path).suffix)
    if unpack:
        with unpack(file) as lines:
            yield from (line_content(line, is_first=i == 0) for i, line in enumerate(lines))
        return
    if block.start:  # skip the rest of a line that begins in the previous block
        file.seek(block.start - 1)
        file.readline()
    start = file.tell()
    while start < block.stop:
        line = file.readline()
        if not line:
            return
        yield line_content(line, is_first=start == 0)
        start = file.tell()


def _read_rows(file: Any, block: Block, column: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    parquet = pq.ParquetFile(file)
    find_columns(block.path, parquet.schema_arrow.names, {"text": column})
    table = parquet.read_row_groups(range(block.start, block.stop), columns=[column])
    return table.to_pylist()
