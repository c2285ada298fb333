"""Files of conversations, JSON lines or Parquet: instructions, chat messages or ShareGPT's turns.

An example is {"turns": the conversation as `conversations.to_text` writes it, "text": all that is
said}.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transformer_jax.conversations import (
    ASSISTANT,
    Conversation,
    as_source,
    check_answered,
    contents,
    from_object,
    from_text,
    to_text,
)
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed, RandomAccess, Selection
from transformer_jax.data.files.text import TextLines, open_files
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)


def open_conversations(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The corpora of a split of `conversations`: one for each file.

    Raises:
      UserError: no file is named, or one cannot be used.
    """
    return open_files(config, split, lambda path: read_conversations(path, split))


def open_answers(config: DataConfig, split: str) -> Sequence[Corpus]:
    """As `open_conversations`, an example {"source", "target"} for each answer: what comes before
    it as text, and the answer; of encoder-decoders."""
    return open_files(config, split, lambda path: read_answers(path, split))


def read_answers(path: str, split: str) -> Corpus:
    """Each answer of a file's conversations, behind what comes before it; as
    `read_conversations`."""
    conversations = read_conversations(path, split)
    places = [
        (i, end)
        for i, example in enumerate(conversations)
        for end, turn in enumerate(from_text(example["turns"]))
        if turn.role == ASSISTANT
    ]

    def answer(place: tuple[int, int]) -> Example:
        index, end = place
        turns = from_text(conversations[index]["turns"])
        return {"source": as_source(turns[:end]), "target": turns[end].content}

    return Parsed(places, answer)


def read_conversations(path: str, split: str) -> Corpus:
    """The conversations of a file; "train" loses those with an empty answer, with a warning.

    Args:
      path: JSON lines, plain or gzip (by the ending .gz), or Parquet (by the ending .parquet).
      split: what they are for.

    Raises:
      UserError: the file cannot be read, or a line is no conversation (the first one is named).
    """
    rows = ParquetRows.opened(path) if path.endswith(".parquet") else JsonLines(TextLines(path))
    kept = [i for i in range(len(rows)) if _is_answered(rows, i, path, split)]
    if not kept:
        raise UserError(f"{path} has no conversation with an answer")
    if len(kept) < len(rows):
        logger.warning(
            "left out %d of %d conversations of %s: an answer is empty",
            *(len(rows) - len(kept), len(rows), path),
        )
    return Selection(Parsed(rows, _example), np.array(kept))


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


def _is_answered(rows: Sequence[Any], index: int, path: str, split: str) -> bool:
    """Whether no answer is empty, which only training may lose."""
    try:
        conversation = from_object(rows[index])
        empty = [
            turn for turn in conversation if turn.role == ASSISTANT and not turn.content.strip()
        ]
        if empty and split == "train":
            return False
        check_answered(conversation)
    except ValueError as error:
        raise UserError(f"{path}, line {index + 1}: {error}") from error
    return True


def _example(found: Mapping[str, Any]) -> Example:
    conversation: Conversation = from_object(found)
    return {"turns": to_text(conversation), "text": contents(conversation)}
