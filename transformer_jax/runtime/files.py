"""Files written whole or not at all, and never through a link."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` once the block ends; after an error, or a kill, `path`
    is as it was. A link at `path` is replaced, not followed."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    with partial.open("xb") as file:  # x: neither an existing file nor a link is opened
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    partial.replace(path)


def write_whole(path: Path, text: str) -> None:
    """Writes a file of UTF-8 text as `replacing` does."""
    with replacing(path) as file:
        file.write(text.encode())


def open_to_append(path: Path) -> TextIO:
    """A file of UTF-8 text, made if absent, each line of which is written at once.

    Raises:
      OSError: the path is a link, or cannot be written.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o666), "a+", buffering=1, encoding="utf-8")
