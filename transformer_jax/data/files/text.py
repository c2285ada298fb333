"""Text files of one example a line, read lazily: a corpus may be larger than memory.

A line ends at "\\n" and nowhere else: U+2028, form feeds and other characters that `str.splitlines`
splits at are text. One "\\r" before the line end and a byte order mark before the first line
are dropped, so that files from Windows read the same.
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
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np

from transformer_jax.buckets.bucket import is_address
from transformer_jax.buckets.copies import fetch_file, fetch_matching
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import RandomAccess
from transformer_jax.errors import UserError

_CHUNK_BYTES = 1 << 24
_BEGINS_TEXT = np.array(
    [i > ord(" ") and chr(i).isprintable() for i in range(0x80)]
    + [i > 0xC2 and i not in (0xE1, 0xE2, 0xE3) for i in range(0x80, 0x100)]
)
"""First bytes of characters that are no white space; of others (U+3000 is e3 80 80) some are."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class TextLines(RandomAccess[str]):
    """The lines of a UTF-8 text file, without their line ends; plain or compressed, by the ending,
    .gz or .zst.

    The file is read through once, for the places where its lines end; only these stay in memory.
    A compressed file is unpacked into a nameless temporary one.

    Args:
      path: of the file.
      once: whether a pipe will do, as `<(...)` of the shell is one: fit for what a command reads
        once, not for the data of a run, which is read again when the run goes on.

    Raises:
      UserError: the file is missing, unreadable, empty, broken inside, not UTF-8 (names the line),
        or a device, or a pipe.
    """

    def __init__(self, path: str, *, once: bool = False):
        self.path = os.fspath(path)
        self._bytes: mmap.mmap | memoryview = _map_into_memory(self.path, once)
        self._first = len(codecs.BOM_UTF8) if self._bytes[:3] == codecs.BOM_UTF8 else 0
        self._ends = _line_ends(self._bytes)  # [N], one place behind each line's last byte
        self._check_utf8()

    def __len__(self) -> int:
        return len(self._ends)

    def item(self, index: int) -> str:
        return self.line_bytes(index).decode()

    def line_bytes(self, index: int) -> bytes:
        """Line `index` >= 0 as it stands in the file."""
        start = self._ends[index - 1] + 1 if index else self._first
        return bytes(self._bytes[start : self._ends[index]]).removesuffix(b"\r")

    def text(self, start: int = 0, stop: int | None = None) -> str:
        """The lines from `start` up to `stop`, with their line ends; None: to the end of the file.

        A line end is "\\n", whatever it is in the file; the last line has one if it has one there.
        """
        stop = len(self) if stop is None else stop
        first = self._ends[start - 1] + 1 if start else self._first
        text = bytes(self._bytes[first : self._ends[stop - 1] + 1]).decode()
        return text.replace("\r\n", "\n").removesuffix("\r")

    @property
    def content(self) -> mmap.mmap | memoryview:
        """All of the file, unpacked, as bytes."""
        return self._bytes

    def blank(self) -> np.ndarray:
        """Which lines are empty or white space alone, bool [N]."""
        content = np.frombuffer(self._bytes, np.uint8)
        starts = np.append(self._first, self._ends[:-1] + 1)
        blank = ~_BEGINS_TEXT[content[np.minimum(starts, len(content) - 1)]]
        for i in np.flatnonzero(blank).tolist():  # few begin with a space
            blank[i] = not self.item(i).strip()
        return blank

    def __repr__(self) -> str:
        return f"TextLines({self.path!r})"

    def __getstate__(self) -> dict[str, Any]:
        # As an array, which processes can share.
        return {**vars(self), "_bytes": np.frombuffer(self._bytes, np.uint8)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._bytes = memoryview(state["_bytes"])

    def _check_utf8(self) -> None:
        start, size = 0, len(self._bytes)
        while start < size:
            # Whole lines, so that no character is cut.
            last = np.searchsorted(self._ends, min(start + _CHUNK_BYTES, size - 1))
            stop = int(self._ends[last]) + 1
            try:
                bytes(self._bytes[start:stop]).decode()
            except UnicodeDecodeError as error:
                number = np.searchsorted(self._ends, start + error.start) + 1
                raise UserError(
                    f"{self.path}, line {number}: not UTF-8 ({error.reason}); convert it to UTF-8"
                ) from error
            start = stop


def blocks(lines: TextLines) -> np.ndarray:
    """The runs of lines that are not blank, int64 [N, 2]: the place of each run's first line, and
    the place behind its last."""
    changes = np.diff(lines.blank(), prepend=True, append=True)
    return np.flatnonzero(changes).reshape(-1, 2)


def open_files(
    config: DataConfig, split: str, read: Callable[[str], Sequence[Any]]
) -> list[Sequence[Any]]:
    """What `read` makes of each file that `train_text`, `valid_text` or `test_text` names.

    Raises:
      UserError: no file is named, or one cannot be used.
    """
    return [read(path) for path in configured_paths(config, f"{split}_text")]


def configured_paths(config: DataConfig, field: str) -> list[str]:
    """The files that `config.field` names, as `expand_paths` has them.

    Raises:
      UserError: the field is not set, or a pattern matches no file.
    """
    paths = getattr(config, field)
    if not paths:
        raise UserError(f"data.{field} is not set: {config.name} needs the path of a text file")
    return expand_paths(paths, f"data.{field}")


def expand_paths(paths: str, field: str) -> list[str]:
    """The files that a field of the config names: separated by commas, "~" and "*" expanded.

    Raises:
      UserError: a pattern matches no file, or what lies at an address cannot be read.
    """
    found = []
    for pattern in map(os.path.expanduser, filter(None, paths.split(","))):
        if not (matches := _matches(pattern)):
            raise UserError(f"{field}: no file matches {pattern}")
        found += matches
    return found


def _matches(pattern: str) -> list[str]:
    """The files that a pattern names; those at an address are brought here."""
    if is_address(pattern):
        matches = fetch_matching(pattern) if "*" in pattern else [fetch_file(pattern)]
        return list(map(str, matches))
    return sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]


def zstd_unpacked(file: BinaryIO) -> BinaryIO:
    """What a file holds that is compressed with zstd."""
    import pyarrow as pa

    return io.BufferedReader(pa.CompressedInputStream(file, "zstd"))


def _map_into_memory(path: str, once: bool) -> mmap.mmap:
    try:
        kind = os.stat(path).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or (once and stat.S_ISFIFO(kind))):
            raise UserError(f"{path} is no regular file; write its content to one")
        with open(path, "rb") as file:
            if path.endswith(".gz"):
                return _copied(gzip.open(file), path)
            if path.endswith(".zst"):
                return _copied(zstd_unpacked(file), path)
            return _mapped(file, path) if stat.S_ISREG(kind) else _copied(file, path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is not a whole gzip file ({error}): fetch it again") from error
    except OSError as error:
        if path.endswith(".zst") and error.errno is None:  # of the library
            raise UserError(f"{path} is not a whole zstd file ({error}): fetch it again") from error
        if error.errno in _NO_ROOM:
            raise UserError(
                f"no room to unpack {path} in {tempfile.gettempdir()} ({error.strerror}): "
                "set TMPDIR to a folder that has it"
            ) from error
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name, say
        raise UserError(f"cannot read {path!r}: {error}") from error


def _mapped(file: BinaryIO, path: str) -> mmap.mmap:
    if not os.fstat(file.fileno()).st_size:
        raise UserError(f"{path} is empty: it must hold one example a line")
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _copied(content: BinaryIO | gzip.GzipFile, path: str) -> mmap.mmap:
    """What is unpacked, or comes through a pipe, by way of a nameless file."""
    with tempfile.TemporaryFile() as copy, content:
        shutil.copyfileobj(content, copy, _CHUNK_BYTES)
        copy.flush()
        return _mapped(copy, path)


def _line_ends(data: mmap.mmap) -> np.ndarray:
    """The place of each line feed; of the end, too, where a last line has none."""
    ends, size = [np.empty(0, np.int64)], len(data)
    for start in range(0, size, _CHUNK_BYTES):
        chunk = np.frombuffer(data[start : start + _CHUNK_BYTES], np.uint8)
        ends.append(np.flatnonzero(chunk == ord("\n")) + start)
    if data[size - 1 :] != b"\n":
        ends.append(np.array([size]))
    return np.concatenate(ends)
