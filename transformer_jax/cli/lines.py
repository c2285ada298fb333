"""One example a line: how they are read, written and counted."""

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from itertools import batched
from typing import Self

from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

_SECONDS_WORTH_REPORTING = 5

_ESCAPED = {"\\": r"\\", "\n": r"\n", "\r": r"\r"}
_MEANT = {escaped: character for character, escaped in _ESCAPED.items()}


def escape(text: str) -> str:
    r"""Puts an example on one line: backslash, line feed and return become `\\`, `\n` and `\r`."""
    return re.sub(r"[\\\n\r]", lambda match: _ESCAPED[match[0]], text)


def unescape(line: str) -> str:
    r"""The inverse of `escape`. A backslash before anything else stands for itself."""
    return re.sub(r"\\[\\nr]", lambda match: _MEANT[match[0]], line)


def example_of(line: str, objects: bool) -> str:
    """An example as a task takes it; where it takes JSON objects, too, these have escapes of their
    own."""
    return line if objects and _is_object(line) else unescape(line)


def _is_object(line: str) -> bool:
    try:
        return line.lstrip().startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def read_batches(stream: BufferedIOBase, *, most: int) -> Iterator[list[str]]:
    r"""Yields the lines of `stream`, at most `most` at a time, without waiting for more to come.

    Whoever writes a line and waits for its answer gets it; a file is read in full batches. Lines
    end at "\n" alone, and the last one counts without it. What is not UTF-8 becomes U+FFFD, with
    a warning that names the line.

    Raises:
      UserError: the stream cannot be read.
    """
    number = 0
    for batch in _read_available(stream, most):
        yield [_decode(line, number + offset) for offset, line in enumerate(batch, 1)]
        number += len(batch)


def _read_available(stream: BufferedIOBase, most: int) -> Iterator[tuple[bytes, ...]]:
    begun: list[bytes] = []  # the parts of a line whose end is not yet read
    while block := _read_block(stream):
        first, *others = block.split(b"\n")
        begun.append(first)
        if others:
            lines = [b"".join(begun), *others]
            begun = [lines.pop()]
            yield from batched(lines, most)
    if rest := b"".join(begun):
        yield (rest,)


def _read_block(stream: BufferedIOBase) -> bytes:
    try:
        return stream.read1(1 << 20)
    except OSError as error:
        raise UserError(f"cannot read the input: {error.strerror}") from error


def _decode(line: bytes, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        logger.warning(
            "line %d of the input is not UTF-8 from byte %d on; what cannot be read becomes U+FFFD",
            number,
            error.start + 1,
        )
        return line.decode("utf-8", errors="replace")


class LineCount:
    """Counts lines on stderr: a progress bar on a terminal and, if it took some seconds, lines a
    second at the end.

    Args:
      done: what was done to the lines, such as "predicted".
      total: how many there are, if known.
    """

    def __init__(self, done: str, total: int | None = None) -> None:
        from tqdm import tqdm

        self._done, self._count, self._start = done, 0, time.perf_counter()
        self._bar = tqdm(total=total, unit=" lines", disable=None, leave=False)

    def __enter__(self) -> Self:
        return self

    def advance(self, count: int) -> None:
        """Counts so many lines more."""
        self._count += count
        self._bar.update(count)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.close()
        seconds = time.perf_counter() - self._start
        if kind is None and seconds > _SECONDS_WORTH_REPORTING:
            logger.info(
                "%s %d lines in %.1f s, %.1f a second",
                *(self._done, self._count, seconds, self._count / seconds),
            )


# FOLDED cli.prefixes: What the output of each line is to start with, from a file beside the lines.


def open_prefixes(path: str | None) -> Callable[[int, list[str]], dict[str, list[str]]]:
    """(number of the first, lines) -> the option that says what their outputs start with.

    Raises:
      UserError: the file cannot be read; later, it has fewer lines than the input.
    """
    if path is None:
        return lambda number, lines: {}
    from transformer_jax.data.files.text import TextLines

    kept = TextLines(path, once=True)

    def of_lines(number: int, lines: list[str]) -> dict[str, list[str]]:
        if number + len(lines) - 1 > len(kept):
            raise UserError(f"--prefixes: {path} has {len(kept)} lines, fewer than the input")
        return {"prefixes": [unescape(kept[number - 1 + i]) for i in range(len(lines))]}

    return of_lines
