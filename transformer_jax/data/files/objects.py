"""Files of objects, one an example: JSON lines, or the rows of Parquet."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from transformer_jax.conversations import NothingToLearn
from transformer_jax.data.examples import Corpus, Example, Parsed, RandomAccess, Selection
from transformer_jax.data.files.text import TextLines
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)


def read_objects(path: str, split: str, example: Callable[[Any], Example]) -> Corpus:
    """The examples of a file; "train" loses those that teach nothing, with a warning.

    Args:
      path: JSON lines, plain or compressed (by the ending, .gz or .zst), or Parquet (.parquet).
      split: what they are for.
      example: makes one of an object; ValueError where it is none, `NothingToLearn` where training
        may leave it out.

    Raises:
      UserError: the file cannot be read, has no example, or a line is none (the first one is
        named).
    """
    rows = opened(path)
    kept, reason = list[int](), ""
    for i in range(len(rows)):
        try:
            example(rows[i])
            kept.append(i)
        except ValueError as error:
            if split != "train" or not isinstance(error, NothingToLearn):
                raise UserError(f"{path}, line {i + 1}: {error}") from error
            reason = reason or f"line {i + 1}: {error}"
    if len(kept) < len(rows):
        logger.warning(
            "left out %d of %d lines of %s, which teach nothing (%s)",
            *(len(rows) - len(kept), len(rows), path, reason),
        )
    if not kept:
        raise UserError(f"{path} has no line to learn from")
    return Selection(Parsed(rows, example), np.array(kept))


def opened(path: str) -> RandomAccess[Any]:
    """The objects of a file, by its ending; arguments and errors as of `read_objects`."""
    return ParquetRows.opened(path) if path.endswith(".parquet") else JsonLines(TextLines(path))


@dataclass(frozen=True, repr=False)
class JsonLines(RandomAccess[Any]):
    """What each line of a file holds.

    Attributes:
      lines: of the file.
    """

    lines: TextLines

    def __len__(self) -> int:
        return len(self.lines)

    def item(self, index: int) -> Any:
        try:
            return json.loads(self.lines[index])
        except (ValueError, RecursionError) as error:
            raise ValueError(f"this is no JSON ({error})") from error


@dataclass(frozen=True, repr=False)
class ParquetRows(RandomAccess[Any]):
    """The rows of a Parquet file, as objects.

    Attributes:
      table: of pyarrow.
    """

    table: Any

    @classmethod
    def opened(cls, path: str) -> "ParquetRows":
        """Those of a file; UserError where it is none."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return cls(pq.read_table(path, memory_map=True))
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"cannot read {path} as Parquet: {error}") from error

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def item(self, index: int) -> Any:
        (row,) = self.table.slice(index, 1).to_pylist()
        return {key: value for key, value in row.items() if value is not None}
