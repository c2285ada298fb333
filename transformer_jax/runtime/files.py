"""Files of a workdir, which may come from anywhere: regular ones alone are read, and only up to a
size; they are written whole or not at all, and neither goes through a link.

The sizes are far above those of any run, so that a file of terabytes that takes no room on the disk
ends in one line and not in the use of all memory.
"""

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, TextIO

from transformer_jax.errors import UserError

SETTINGS_BYTES = 2**20
"""Most of config.json, modules.json, a sweep's result, or one record of metrics.jsonl."""
VOCABULARY_BYTES = 2**26
"""Most of a file in tokenizer/."""
METADATA_BYTES = 2**26
"""Most of a file of a checkpoint that holds no arrays. (The manifest of a thousand files has
2**17; the shardings of 1,500 arrays on 4,096 devices just fit.)"""
RECORDS_BYTES = 2**28
"""Most of metrics.jsonl, which has some 250 bytes a record."""


_DRIVE = re.compile("[A-Za-z]:")


def is_safe_name(name: str) -> bool:
    """Returns True if a name that others have chosen leads to a file below any folder.

    The parts between its "/" are names of files and folders: a name is refused if it is absolute,
    has an empty part, ".", "..", a backslash, a NUL, or begins with a drive's letter ("C:").
    """
    parts = name.split("/")
    has_odd_part = any(part in ("", ".", "..") for part in parts)
    return not (has_odd_part or "\\" in name or "\0" in name or _DRIVE.match(name))


def path_below(folder: Path, name: str) -> Path:
    """Path of a file or folder below `folder`, for a name that others have chosen.

    Raises:
      UserError: the name is not safe (`is_safe_name`), or a link leads out of the folder.
    """
    if not is_safe_name(name):
        raise UserError(f"{name!r} is not the name of a file below {folder}")
    path = folder / name
    try:
        outside = not path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError) as error:  # links that lead to each other
        raise UserError(f"{str(path)!r} cannot be used: {error}") from error
    if outside:
        raise UserError(f"{str(path)!r} leads out of {folder} through a link; remove the link")
    return path


def open_regular(path: Path, most: int | None = None) -> BufferedReader:
    """Opens a regular file of at most `most` bytes (None: any number) to read it.

    Raises:
      OSError: it cannot be opened, is larger, or something else: a link, a pipe or a device, say.
    """
    file = os.fdopen(_opened(path, os.O_RDONLY), "rb")
    size = os.fstat(file.fileno()).st_size
    if most is None or size <= most:
        return file
    file.close()
    raise OSError(errno.EFBIG, f"it has {size:,} bytes, and a run writes fewer", str(path))


def read_regular(path: Path, most: int) -> bytes:
    """The content of a regular file; OSError as for `open_regular`."""
    with open_regular(path, most) as file:
        return file.read(most)


def everything_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """All that lies in a folder and its subfolders, without following links; what cannot be listed
    now is left out."""
    folders = [os.fspath(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as found:
                entries = list(found)
        except OSError:
            continue
        folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        yield from entries


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
      OSError: the path is no regular file or cannot be written, or the file has a second name (a
        hard link), whose content would change with it.
    """
    descriptor = _opened(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EMLINK, "it has a second name (a hard link)", str(path))
    return os.fdopen(descriptor, "a+", buffering=1, encoding="utf-8")


def remove(path: Path) -> None:
    """Deletes a file, a link or a folder with all that is in it; nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _opened(path: Path, flags: int) -> int:
    """The descriptor of a regular file; of a pipe, no other end is waited for."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", str(path)) from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


# FOLDED runtime.cache_folder: Where this program keeps what it can make or bring again.


def cache_folder(name: str) -> Path | None:
    """A folder of the user's cache (`$XDG_CACHE_HOME`, else `~/.cache`), which need not be there;
    None where the user has no home."""
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return root / "transformer_jax" / name
