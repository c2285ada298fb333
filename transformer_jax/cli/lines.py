"""One example a line: how `predict` reads and writes them."""

import logging
import re
from collections.abc import Iterator
from io import BufferedIOBase
from itertools import batched

logger = logging.getLogger(__name__)

_ESCAPED = {"\\": r"\\", "\n": r"\n", "\r": r"\r"}
_MEANT = {escaped: character for character, escaped in _ESCAPED.items()}


def escape(text: str) -> str:
    r"""Puts an example on one line: backslash, line feed and return become `\\`, `\n` and `\r`."""
    return re.sub(r"[\\\n\r]", lambda match: _ESCAPED[match[0]], text)


def unescape(line: str) -> str:
    r"""The inverse of `escape`. A backslash before anything else stands for itself."""
    return re.sub(r"\\[\\nr]", lambda match: _MEANT[match[0]], line)


def read_batches(stream: BufferedIOBase, *, most: int) -> Iterator[list[str]]:
    r"""Yields the lines of `stream`, at most `most` at a time, without waiting for more to come.

    Whoever writes a line and waits for its answer gets it; a file is read in full batches. Lines
    end at "\n" alone, and the last one counts without it. What is not UTF-8 becomes U+FFFD, with
    a warning that names the line.
    """
    number = 0
    for batch in _read_available(stream, most):
        yield [_decode(line, number + offset) for offset, line in enumerate(batch, 1)]
        number += len(batch)


def _read_available(stream: BufferedIOBase, most: int) -> Iterator[tuple[bytes, ...]]:
    rest = b""
    while block := stream.read1(1 << 20):
        *lines, rest = (rest + block).split(b"\n")
        yield from batched(lines, most)
    if rest:
        yield (rest,)


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
