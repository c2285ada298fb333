# SPDX-License-Identifier: Apache-2.0
"""Lines of text files, mapped into memory: a corpus may be larger than memory.

`line_content` says what is text and what is a line end, in files and in the program's input.
"""

import codecs
import errno
import glob
import gzip
import io
import mmap
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from transformer_jax.buckets.bucket import is_address
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import RandomAccess
from transformer_jax.errors import MissingSplitError, UserError
from transformer_jax.suggestions import suggest_file

_CHUNK_BYTES = 1 << 24
_BEGINS_TEXT = np.array(
    [i > ord(" ") and chr(i).isprintable() for i in range(0x80)]
    + [i > 0xC2 and i not in (0xE1, 0xE2, 0xE3) for i in range(0x80, 0x100)]
)
"""True for a first byte whose characters are never white space. (U+3000 begins with e3.)"""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def line_content(line: bytes, *, is_first: bool) -> bytes:
    """Content of a line: without its line end, and without a byte order mark if it is the first.

    A line ends at "\\n", or at "\\r\\n" in files from Windows. All else is text: a "\\r" elsewhere,
    U+2028, form feeds and other characters at which `str.splitlines` splits.
    """
    if line.endswith(b"\n"):
        line = line[:-1].removesuffix(b"\r")
    return line.removeprefix(codecs.BOM_UTF8) if is_first else line


class TextLines(RandomAccess[str]):
    """Lines of a UTF-8 text file, without line ends.

    The file is scanned once for its line ends; only their positions stay in memory. A compressed
    file is unpacked to an unnamed temporary file.

    Attributes:
      path: the file.
      content: its bytes, unpacked, uint8 [size]: a memory map, or shared with other processes.

    Args:
      path: the file, plain, .gz or .zst.
      once: allow a pipe, such as the shell's `<(...)`. Training data cannot come from a pipe, since
        a resumed run reads it again.

    Raises:
      UserError: the file is missing, unreadable, empty, damaged, not UTF-8 (names the line), a
        device, or a pipe without `once`.
    """

    def __init__(self, path: str, *, once: bool = False):
        self.path = os.fspath(path)
        self.content = np.frombuffer(_map_into_memory(self.path, once), np.uint8)
        has_mark = self.content[:3].tobytes() == codecs.BOM_UTF8
        self._first = len(codecs.BOM_UTF8) if has_mark else 0
        self._ends = _line_ends(self.content, self.path)

    def __len__(self) -> int:
        return len(self._ends)

    def item(self, index: int) -> str:
        return self.line_bytes(index).decode()

    def line_bytes(self, index: int) -> bytes:
        """Bytes of line `index` >= 0, without its line end."""
        start = self._ends[index - 1] + 1 if index else 0
        line = self.content[start : self._ends[index] + 1].tobytes()
        return line_content(line, is_first=index == 0)

    def text(self, start: int = 0, stop: int | None = None) -> str:
        """Text of the lines from `start` to before `stop` (None: to the end), with line ends.

        Line ends become "\\n"; the last line of the file has one only if it has one in the file.
        """
        stop = len(self) if stop is None else stop
        first = self._ends[start - 1] + 1 if start else self._first
        text = self.content[first : self._ends[stop - 1] + 1].tobytes().decode()
        return text.replace("\r\n", "\n")

    def blank_mask(self) -> np.ndarray:
        """Mask of the lines that are empty or white space, bool [N]."""
        starts = np.append(self._first, self._ends[:-1] + 1)
        blank = ~_BEGINS_TEXT[self.content[np.minimum(starts, len(self.content) - 1)]]
        for i in np.flatnonzero(blank).tolist():  # few lines begin with white space
            blank[i] = not self.item(i).strip()
        return blank


def paragraphs(lines: TextLines) -> np.ndarray:
    """Ranges of consecutive non-blank lines, int64 [N, 2]: first line and end (exclusive)."""
    changes = np.diff(lines.blank_mask(), prepend=True, append=True)
    return np.flatnonzero(changes).reshape(-1, 2)


def open_files(
    config: DataConfig, split: str, read: Callable[[str], Sequence[Any]]
) -> list[Sequence[Any]]:
    """Reads each file of `train_text`, `valid_text` or `test_text` with `read`.

    Raises:
      UserError: no file is configured, or one cannot be used.
    """
    paths = configured_paths(config, f"{split}_text")
    return [read(path) for path in dict.fromkeys(paths)]  # several patterns may match a file


def configured_paths(config: DataConfig, field: str) -> list[str]:
    """Paths that a field of the config lists, expanded by `expand_paths`.

    Raises:
      MissingSplitError: the field is not set.
      UserError: a pattern matches no file.
    """
    paths = getattr(config, field)
    if not paths:
        raise MissingSplitError(f"data.{field} is not set: {config.name} needs the path of a file")
    return expand_paths(paths, f"data.{field}")


def expand_paths(paths: str, field: str) -> list[str]:
    """Paths in a comma-separated list, with "~" and "*" expanded.

    Files at addresses, such as "s3://...", are copied to the local cache.

    Args:
      field: name of the config field, for messages.

    Raises:
      UserError: a pattern matches no file, or a remote file cannot be read.
    """
    if os.path.exists(os.path.expanduser(paths)):  # a comma or a bracket may be part of its name
        return [os.path.expanduser(paths)]
    expanded: list[str] = []
    for pattern in map(os.path.expanduser, filter(None, paths.split(","))):
        matches = _matches(pattern)
        if not matches:
            raise UserError(f"{field}: no file matches {pattern}")
        expanded += matches
    return expanded


def _matches(pattern: str) -> list[str]:
    if is_address(pattern):
        from transformer_jax.buckets.copies import fetch_file, fetch_matching

        matches = fetch_matching(pattern) if "*" in pattern else [fetch_file(pattern)]
        return list(map(str, matches))
    is_pattern = glob.has_magic(pattern) and not os.path.exists(pattern)
    return sorted(glob.glob(pattern)) if is_pattern else [pattern]


def _zstd_unpacked(file: BinaryIO) -> BinaryIO:
    """Opens a zstd-compressed file to read its unpacked content."""
    import pyarrow as pa

    return io.BufferedReader(pa.CompressedInputStream(file, "zstd"))


UNPACK: Mapping[str, Callable[[Any], Any]] = {".gz": gzip.open, ".zst": _zstd_unpacked}
"""Ending of a compressed file -> function that opens it, when it is open, for its content."""


def _map_into_memory(path: str, once: bool) -> mmap.mmap:
    try:
        kind = os.stat(path).st_mode
        # A folder gets the message of `open`.
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or (once and stat.S_ISFIFO(kind))):
            raise UserError(f"{path} is not a regular file; copy its content to one")
        with open(path, "rb") as file:
            unpack = UNPACK.get(Path(path).suffix)
            if unpack:
                return _copied(unpack(file), path)
            return _mapped(file, path) if stat.S_ISREG(kind) else _copied(file, path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is not a complete gzip file ({error}): get it again") from error
    except OSError as error:
        if path.endswith(".zst") and error.errno is None:  # raised by pyarrow
            raise UserError(
                f"{path} is not a complete zstd file ({error}): get it again"
            ) from error
        if error.errno in _NO_ROOM:
            raise UserError(
                f"no room to unpack {path} in {tempfile.gettempdir()} ({error.strerror}): "
                "set TMPDIR to a folder with enough room"
            ) from error
        hint = suggest_file(Path(path)) if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"cannot read {path}: {error.strerror}{hint}") from error


def _mapped(file: BinaryIO, path: str) -> mmap.mmap:
    if not os.fstat(file.fileno()).st_size:
        raise UserError(f"{path} is empty: it must hold one example a line")
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _copied(content: BinaryIO | gzip.GzipFile, path: str) -> mmap.mmap:
    """Copies a stream (unpacked data or a pipe) to an unnamed temporary file and maps it."""
    with tempfile.TemporaryFile() as copy, content:
        shutil.copyfileobj(content, copy, _CHUNK_BYTES)
        copy.flush()
        return _mapped(copy, path)


def _line_ends(content: np.ndarray, path: str) -> np.ndarray:
    """Index of each line feed, and of the end of the file if the last line has none; UserError if
    the file is not UTF-8."""
    ends: list[np.ndarray] = []  # at least one: empty files are refused before
    size = len(content)
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, size, _CHUNK_BYTES):
        chunk = content[start : start + _CHUNK_BYTES]
        ends.append(start + np.flatnonzero(chunk == ord("\n")))
        split, _ = decoder.getstate()  # bytes of a character that continues in this chunk
        try:
            decoder.decode(chunk.tobytes(), final=start + _CHUNK_BYTES >= size)
        except UnicodeDecodeError as error:
            position = start - len(split) + error.start
            number = np.searchsorted(np.concatenate(ends), position) + 1
            raise UserError(
                f"{path}, line {number}: not UTF-8 ({error.reason}); convert it to UTF-8"
            ) from error
    if content[size - 1] != ord("\n"):
        ends.append(np.array([size]))
    return np.concatenate(ends)
