"""Reads text files of one sentence a line, alone or as aligned pairs.

A line ends at "\\n" and nowhere else: U+2028, form feeds and other characters that `str.splitlines`
splits at are text. One "\\r" before the line end and a byte order mark before the first line
are dropped, so that files from Windows read the same.
"""

import gzip
import itertools
import logging
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class LinePairs(Sequence):
    """Line i of one side beside line i of the other: a random-access source of examples.

    Attributes:
      sources, targets: equally many lines; any sequence of strings will do.
    """

    sources: Sequence[str]
    targets: Sequence[str]

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return LinePairs(self.sources[index], self.targets[index])
        return {"source": self.sources[index], "target": self.targets[index]}

    def __repr__(self) -> str:
        return f"LinePairs({len(self)} pairs)"


def read_pairs(source_path: str, target_path: str, *, drop_blank: bool) -> LinePairs:
    """Reads two files that are aligned line by line.

    Args:
      source_path, target_path: text files, plain or gzip (by the ending .gz).
      drop_blank: leave out pairs that have no text on one side or on both (with a warning that
        counts them), as fits training; otherwise every line is kept in its place.

    Raises:
      UserError: a file cannot be read, the files differ in length, or no pair is left.
    """
    sources, targets = read_lines(source_path), read_lines(target_path)
    if len(sources) != len(targets):
        raise UserError(
            f"{source_path} has {len(sources)} lines but {target_path} has {len(targets)}: "
            "line i of one must be the translation of line i of the other"
        )
    pairs = LinePairs(sources, targets)
    if not drop_blank:
        return pairs
    kept = _without_blank(pairs)
    if not kept:
        raise UserError(f"no line has text in both {source_path} and {target_path}")
    if len(kept) < len(pairs):
        logger.warning(
            "left out %d of %d pairs of %s and %s: no text on one side or on both",
            len(pairs) - len(kept),
            len(pairs),
            source_path,
            target_path,
        )
    return kept


def read_lines(path: str) -> list[str]:
    """The lines of a UTF-8 text file, plain or gzip (by the ending .gz), without their line ends.

    Raises:
      UserError: the file is missing, unreadable, empty, broken gzip or not UTF-8 (names the line).
    """
    try:
        text = _read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line_number = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}, line {line_number}: not UTF-8 ({error.reason}); convert the file to UTF-8"
        ) from error
    if not text:
        raise UserError(f"{path} is empty: it must hold one sentence a line")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _read_bytes(path: str) -> bytes:
    open_file = gzip.open if os.fspath(path).endswith(".gz") else open
    try:
        with open_file(path, "rb") as file:
            return file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is not a whole gzip file ({error}): fetch it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _without_blank(pairs: LinePairs) -> LinePairs:
    has_text = [bool(pair["source"].strip() and pair["target"].strip()) for pair in pairs]
    return LinePairs(
        list(itertools.compress(pairs.sources, has_text)),
        list(itertools.compress(pairs.targets, has_text)),
    )
