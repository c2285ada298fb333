"""Text in blocks, each read from where it lies when it is asked for: for more text than memory or
disk would hold, and for files elsewhere ("s3://", "gs://", "hf://").
"""

import contextlib
import dataclasses
import gzip
import io
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
import numpy as np

from transformer_jax.buckets.bucket import as_bucket_errors, require_allowed
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Example, RandomAccess
from transformer_jax.data.files.documents import OBJECTS, of_column
from transformer_jax.data.files.text import zstd_unpacked
from transformer_jax.errors import UserError

ENDINGS = (".txt", ".txt.gz", ".txt.zst", *OBJECTS)
"""Of files that are surely text, or have it in a column."""

_WHOLE = (".gz", ".zst")
_HUB = ("hf",)


@dataclass(frozen=True)
class Block:
    """Part of a file.

    Attributes:
      path: of the file.
      size: bytes of the file.
      start, stop: of its bytes, those of the lines that begin there; of Parquet, of its row groups.
      held: bytes of the block, as they lie in the file; of Parquet, once they are unpacked.
    """

    path: str
    size: int
    start: int
    stop: int
    held: int


@dataclass(frozen=True, repr=False)
class TextBlocks(RandomAccess[Example]):
    """The text of files in blocks; as examples, {"text": str} of a whole block each.

    Attributes:
      blocks: where they are.
      column: of a row, where files have columns.
      by_line: whether each line that is not blank is a document; else a file is one.
    """

    blocks: Sequence[Block]
    column: str
    by_line: bool

    def __len__(self) -> int:
        return len(self.blocks)

    def item(self, index: int) -> Example:
        return {"text": "\n".join(self.documents(index))}

    def documents(self, index: int) -> list[str]:
        """Those of a block, in their order; there may be none.

        Raises:
          UserError: the file cannot be read, is another one by now, or a line is no document.
        """
        block = self.blocks[index]
        with _reading(block.path), _opened(block.path) as file:
            if _size(file) != block.size:
                raise UserError(
                    f"{block.path} has changed: it had {block.size} bytes when this run started; "
                    "bring it back, or start anew in another --workdir"
                )
            if block.path.endswith(".parquet"):
                return _rows(file, block, self.column)
            lines = _lines(file, block)
            if block.path.endswith(OBJECTS):
                return [_document(block, line, self.column) for line in lines if line.strip()]
            if self.by_line:
                return [line for line in map(_decoded, lines) if line.strip()]
            return ["\n".join(map(_decoded, lines))]

    def sample(self, num_bytes: int) -> "TextBlocks":
        """Some of the blocks, evenly spread, that hold about so much."""
        held = sum(block.held for block in self.blocks)
        share = min(1.0, num_bytes / held)
        count = max(1, round(share * len(self.blocks)))
        spread = np.linspace(0, len(self.blocks) - 1, count).astype(int)
        return dataclasses.replace(self, blocks=tuple(self.blocks[i] for i in spread))


def open_blocks(config: DataConfig, paths: Sequence[str]) -> TextBlocks:
    """The blocks of files, each of about `config.block_megabytes`.

    A compressed file is one block, whatever its size, and so is one that is a document; of Parquet
    a block has whole row groups.

    Args:
      config: the section `data`.
      paths: of UTF-8 text (.gz and .zst too), JSON lines or Parquet, by their endings; "*" stands
        for any name.

    Raises:
      UserError: a file cannot be read, or no pattern matches; or documents are paragraphs.
    """
    assert config.block_megabytes is not None
    if config.documents == "paragraph":
        raise UserError(
            "data.documents is 'paragraph', which may lie in two blocks; with "
            "data.block_megabytes set it to line or file"
        )
    by_line, size = config.documents == "line", int(config.block_megabytes * 2**20)
    blocks: list[Block] = []
    for path in itertools.chain.from_iterable(map(_matches, paths)):
        whole = path.endswith(_WHOLE) or not (by_line or path.endswith(OBJECTS))
        with _reading(path), _opened(path) as file:
            blocks += _cut(path, file, math.inf if whole else size)
    return TextBlocks(tuple(blocks), config.text_field or "text", by_line)


def _matches(pattern: str) -> list[str]:
    """The files that a pattern names, with the protocol in front."""
    with _reading(pattern):
        if "*" not in pattern:
            return [pattern]
        system, path = _located(pattern)
        found = sorted(system.glob(path))
    if not found:
        raise UserError(f"data.train_text: no file matches {pattern}")
    protocol = pattern.partition("://")[0] if "://" in pattern else ""
    return [f"{protocol}://{one}" if protocol else one for one in map(str, found)]


def _located(path: str) -> tuple[Any, str]:
    """The file system of a path or address, and the path in it."""
    if "://" not in path:
        return fsspec.filesystem("file"), path
    require_allowed(path, _HUB)
    return fsspec.core.url_to_fs(path)


def _opened(path: str) -> Any:
    system, inside = _located(path)
    return system.open(inside, "rb")


def _cut(path: str, file: Any, size: float) -> Iterator[Block]:
    total = _size(file)
    if not total:
        raise UserError(f"{path} is empty: it must hold text")
    if not path.endswith(".parquet"):
        step = int(min(size, total))
        for start in range(0, total, step):
            stop = min(start + step, total)
            yield Block(path, total, start, stop, stop - start)
        return
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(file).metadata
    first, held = 0, 0
    for group in range(metadata.num_row_groups):
        held += metadata.row_group(group).total_byte_size
        if held >= size or group == metadata.num_row_groups - 1:
            yield Block(path, total, first, group + 1, held)
            first, held = group + 1, 0


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Makes one line of what goes wrong with a file."""
    with as_bucket_errors("cannot read", path):
        try:
            yield
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8 ({error.reason}); convert it to UTF-8") from error


def _size(file: Any) -> int:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    return int(size)


def _lines(file: Any, block: Block) -> Iterator[bytes]:
    """The lines that begin in a block, without their ends."""
    if block.path.endswith(_WHOLE):
        unpack: Any = gzip.open if block.path.endswith(".gz") else zstd_unpacked
        with unpack(file) as lines:
            yield from (line.rstrip(b"\r\n") for line in lines)
        return
    if block.start:  # the line that begins before the block belongs to the block before
        file.seek(block.start - 1)
        file.readline()
    while file.tell() < block.stop and (line := file.readline()):
        yield line.rstrip(b"\r\n")


def _decoded(line: bytes) -> str:
    return line.decode().removeprefix("\ufeff")


def _document(block: Block, line: bytes, column: str) -> str:
    try:
        return of_column(column, json.loads(line))["text"]
    except ValueError as error:
        raise UserError(f"{block.path}, a line behind byte {block.start}: {error}") from error


def _rows(file: Any, block: Block, column: str) -> list[str]:
    import pyarrow.parquet as pq

    parquet = pq.ParquetFile(file)
    if column not in parquet.schema_arrow.names:
        there = ", ".join(parquet.schema_arrow.names)
        raise UserError(
            f"{block.path}: no text in the column {column!r} (columns: {there}); set "
            "data.text_field"
        )
    table = parquet.read_row_groups(range(block.start, block.stop), columns=[column])
    return [text for text in table.column(column).to_pylist() if text]
