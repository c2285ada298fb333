# SPDX-License-Identifier: Apache-2.0
"""Examples as lines of text: reading, writing and counting them."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from itertools import batched

from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

_REPORTED_SECONDS = 5  # runs that take longer report lines a second


def one_line(text: str) -> str:
    r"""Puts an output on one line: line feed and return become `\n` and `\r`; all else stays."""
    return text.replace("\n", r"\n").replace("\r", r"\r")


def read_batches(stream: BufferedIOBase, *, most: int) -> Iterator[list[str]]:
    """Yields the lines of `stream` in batches of at most `most`, as soon as they arrive.

    A writer that waits for the answer to a line gets it; a file is read in full batches. Lines are
    those of `data.files.lines.line_content`, and the last one may lack its line end. Bytes that are
    not UTF-8 become U+FFFD, with a warning that names the line.

    Raises:
      UserError: the stream cannot be read.
    """
    number = 0
    for batch in _read_available(stream, most):
        yield [_decode(line, number + offset) for offset, line in enumerate(batch, 1)]
        number += len(batch)


def _read_available(stream: BufferedIOBase, most: int) -> Iterator[tuple[bytes, ...]]:
    parts: list[bytes] = []  # of a line whose end is not read yet
    while block := _read_block(stream):  # b"" at the end
        first, *others = block.split(b"\n")
        parts.append(first)
        if others:
            lines = [b"".join(parts), *others]
            parts = [lines.pop()]
            yield from batched((line + b"\n" for line in lines), most)
    rest = b"".join(parts)
    if rest:  # a last line without a line feed
        yield (rest,)


def _read_block(stream: BufferedIOBase) -> bytes:
    try:
        return stream.read1(1 << 20)
    except OSError as error:
        raise UserError(f"cannot read the input: {error.strerror}") from error


def _decode(line: bytes, number: int) -> str:
    from transformer_jax.data.files.lines import line_content

    line = line_content(line, is_first=number == 1)
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        message = (
            "line %d of the input is not UTF-8 from byte %d on; bytes that cannot be read become "
            "U+FFFD"
        )
        logger.warning(message, number, error.start + 1)
        return line.decode("utf-8", errors="replace")


@contextlib.contextmanager
def counted_lines(participle: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Counts lines on stderr: a progress bar on a terminal, and lines a second at the end.

    Args:
      participle: names the work in the last message, such as "predicted".
      total: number of lines, if known.

    Returns:
      Context with a function that adds lines to the count.
    """
    from tqdm import tqdm

    start = time.perf_counter()
    number = 0
    # disable=None: a bar only on a terminal. A disabled bar counts nothing.
    with tqdm(total=total, unit=" lines", disable=None, leave=False) as bar:

        def advance(count: int) -> None:
            nonlocal number
            number += count
            bar.update(count)

        yield advance
    seconds = time.perf_counter() - start
    if seconds > _REPORTED_SECONDS:
        rate = number / seconds
        logger.info("%s %d lines in %.1f s, %.1f a second", participle, number, seconds, rate)
