# SPDX-License-Identifier: Apache-2.0
"""Examples as lines of text: reading, writing and counting them."""

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from itertools import batched
from typing import Protocol, Self

from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

_REPORTED_SECONDS = 5  # runs that take longer report lines a second

_ESCAPED = {"\\": r"\\", "\n": r"\n", "\r": r"\r"}
_UNESCAPED = {escaped: character for character, escaped in _ESCAPED.items()}


class ReadableStream(Protocol):
    """A byte stream."""

    def read1(self, size: int, /) -> bytes:
        """Reads at most `size` bytes, as soon as there are any."""


def one_line(text: str) -> str:
    r"""Puts an output on one line: line feed and return become `\n` and `\r`; all else stays."""
    return re.sub(r"[\n\r]", lambda match: _ESCAPED[match[0]], text)


def escape(text: str) -> str:
    r"""Like `one_line`, and a backslash becomes `\\`, so that `unescape` can invert it."""
    return re.sub(r"[\\\n\r]", lambda match: _ESCAPED[match[0]], text)


def unescape(line: str) -> str:
    r"""The inverse of `escape`. A backslash before any other character is kept."""
    return re.sub(r"\\[\\nr]", lambda match: _UNESCAPED[match[0]], line)


def example_reader(*, escaped: bool, reads_objects: bool) -> Callable[[str], str]:
    """Function that returns the example on a line.

    Args:
      escaped: unescape lines, except JSON objects if the task reads these; otherwise a line is its
        example.
      reads_objects: the task reads JSON objects.
    """
    if not escaped:
        return str
    return lambda line: line if reads_objects and _is_object(line) else unescape(line)


def _is_object(line: str) -> bool:
    try:
        return line.lstrip().startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def read_batches(stream: ReadableStream, *, most: int) -> Iterator[list[str]]:
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


def _read_available(stream: ReadableStream, most: int) -> Iterator[tuple[bytes, ...]]:
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


def _read_block(stream: ReadableStream) -> bytes:
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
        logger.warning(
            "line %d of the input is not UTF-8 from byte %d on; bytes that cannot be read become "
            "U+FFFD",
            number,
            error.start + 1,
        )
        return line.decode("utf-8", errors="replace")


class LineCount:
    """Counts lines on stderr: a progress bar on a terminal, and lines a second at the end.

    Args:
      participle: names the work in the last message, such as "predicted".
      total: number of lines, if known.
    """

    def __init__(self, participle: str, total: int | None = None) -> None:
        from tqdm import tqdm

        self._participle = participle
        self._count = 0
        self._start = time.perf_counter()
        # disable=None: a bar only on a terminal.
        self._bar = tqdm(total=total, unit=" lines", disable=None, leave=False)

    def __enter__(self) -> Self:
        return self

    def advance(self, count: int) -> None:
        """Adds `count` lines."""
        self._count += count
        self._bar.update(count)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.close()
        seconds = time.perf_counter() - self._start
        if kind is None and seconds > _REPORTED_SECONDS:
            logger.info(
                "%s %d lines in %.1f s, %.1f a second",
                *(self._participle, self._count, seconds, self._count / seconds),
            )


def open_prefixes(
    path: str | None, read_prefix: Callable[[str], str]
) -> Callable[[int, list[str]], dict[str, list[str]]]:
    """Opens a file with the prefix of each output, one a line, which `read_prefix` reads.

    Returns:
      A function of the number of the first line and the lines: the option `prefixes` for them, or
      no option if `path` is None. It raises UserError if the file has fewer lines than the input.

    Raises:
      UserError: the file cannot be read.
    """
    if path is None:
        return lambda number, lines: {}
    from transformer_jax.data.files.lines import TextLines

    file = TextLines(path, once=True)

    def prefixes_of(number: int, lines: list[str]) -> dict[str, list[str]]:
        if number + len(lines) - 1 > len(file):
            raise UserError(f"--prefixes: {path} has {len(file)} lines, fewer than the input")
        return {"prefixes": [read_prefix(file[number - 1 + i]) for i in range(len(lines))]}

    return prefixes_of
