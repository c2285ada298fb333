# SPDX-License-Identifier: Apache-2.0
"""Safe reading, atomic writing and locking of files, and files that are made again (`remake`).

A workdir may come from a stranger. So only regular files are read; links are not followed.
"""

import contextlib
import datetime
import errno
import fcntl
import glob
import hashlib
import json
import logging
import mmap
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

PARTIAL = ".transformer_jax.partial"
"""Ends the name of a folder that is still being written (`atomic_folder`)."""

_DRIVE = re.compile("[A-Za-z]:")
_REMOVE_ATTEMPTS = 100
_SECONDS_TO_ABANDON = 3600  # a writer writes more often than that
_LONGEST_NAME = 230  # bytes; file systems allow 255, and temporary files add an ending


class NoLocksError(OSError):
    """The file system has no locks."""


def is_safe_name(name: str) -> bool:
    """Returns True if an untrusted name, joined to a folder, is a path below that folder.

    Its parts, separated by "/", are names of files and folders. False if the name is absolute, has
    an empty part, ".", "..", a backslash or a NUL, begins with a drive's letter ("C:"), or has a
    part that is longer than file systems allow.
    """
    parts = name.split("/")
    has_odd_part = any(
        part in ("", ".", "..") or len(part.encode("utf-8", "surrogatepass")) > _LONGEST_NAME
        for part in parts
    )
    return not (has_odd_part or "\\" in name or "\0" in name or _DRIVE.match(name))


def path_below(folder: Path, name: str) -> Path:
    """Joins a folder and an untrusted name.

    Raises:
      UserError: the name is not safe (`is_safe_name`), or a link leads out of the folder.
    """
    if not is_safe_name(name):
        raise UserError(f"{name!r} is not the name of a file below {folder}")
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{str(path)!r} leads out of {folder} through a link; remove the link")
    return path


def path_of_published(path: Path, directory: Path | None = None) -> Path:
    """The file that a published model names, which may be a link within the model's folder.

    In the cache of the Hugging Face hub all files of a model (`snapshots/REVISION/NAME`) are links
    to the `blobs` beside. A link that leads anywhere else could lead to a secret of the user.

    Args:
      directory: of the model, if the file is not directly in it.

    Raises:
      OSError: a link leads out of the folder.
    """
    target = path.resolve()
    folder = (directory or path.parent).resolve()
    allowed = [folder]
    if folder.parent.name == "snapshots":
        allowed.append(folder.parents[1] / "blobs")
    if any(target.is_relative_to(ancestor) for ancestor in allowed):
        return target
    reason = "it is a link that leads out of its folder; replace it by the file"
    raise OSError(errno.ELOOP, reason, str(path))


def cache_folder(name: str) -> Path | None:
    """Folder for files that can be made or fetched again: $XDG_CACHE_HOME/transformer_jax/`name`.

    The default of $XDG_CACHE_HOME is ~/.cache. The folder need not exist. None if the user has no
    home. The path is absolute, so that `buckets.copies.write_back` recognizes what is below it.
    """
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return root.absolute() / "transformer_jax" / name


def open_regular(path: Path) -> BufferedReader:
    """Opens a regular file to read it.

    Raises:
      OSError: the file cannot be opened, or is not regular (a link, a pipe, a device).
    """
    return open(path, "rb", opener=_open_descriptor)


def read_regular(path: Path) -> bytes:
    """Reads a regular file; errors are those of `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def parse_json(text: str | bytes) -> Any:
    """Parses JSON. An integer of 19 or more digits, which may not fit 64 bits, becomes a float;
    arithmetic accepts a float of any size.

    Raises:
      ValueError: it is not JSON.
      RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_int=lambda digits: (int if len(digits) < 19 else float)(digits))


def entries_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """All entries of a folder and its subfolders. Links are not followed, and folders that cannot
    be listed are skipped. An entry knows its type without another call to a disk far away."""
    folders = [os.fspath(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as listing:
                entries = list(listing)
        except OSError:
            continue
        folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        yield from entries


@contextlib.contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """Context of a temporary file that replaces `path` at the end of the block.

    After an error or a kill, `path` is unchanged. A link at `path` is replaced, not followed. An
    OSError that names no file, such as that of a full disk, gets the name `path`.

    Writers of the same file have a temporary file each; the last one to end wins. Temporary files
    of killed writers are deleted by a later one.
    """
    for abandoned in path.parent.glob(f"{glob.escape(path.name)}.{'[0-9a-f]' * 8}.partial"):
        with contextlib.suppress(OSError):  # another writer deletes it, too
            if time.time() > abandoned.stat().st_mtime + _SECONDS_TO_ABANDON:
                abandoned.unlink()
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    with partial.open("xb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            partial.replace(path)
        except BaseException as error:
            partial.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno and error.filename is None:
                raise OSError(error.errno, error.strerror, str(path)) from error
            raise


@contextlib.contextmanager
def atomic_folder(path: Path, flag: str) -> Iterator[Path]:
    """Context of a temporary folder whose content becomes that of `path` at the end of the block.

    It is beside `path`, or inside it if `path` exists, as a folder may be a disk of its own. After
    an error or a kill, `path` is missing or empty as before; the next call removes what is left of
    a temporary folder.

    Args:
      path: new or an empty folder.
      flag: that names it, for messages.

    Raises:
      UserError: `path` is not empty or cannot be written, or another process writes it.
    """
    require_empty(path, flag)
    target = path.resolve()
    partial = target / PARTIAL if target.exists() else target.with_name(f".{target.name}{PARTIAL}")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with _locked_folder(partial):
            for entry in list(partial.iterdir()):
                remove(entry)
            try:
                yield partial
                _move_content(partial, target)
            finally:
                remove(partial)
    except BlockingIOError as error:
        raise UserError(f"{flag}: another process is writing {path}; wait for it") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{flag}: {path} cannot be written: {reason}") from error


def require_empty(path: Path, flag: str) -> None:
    """Raises UserError if a folder exists and is not empty, or is not a folder.

    What a killed process has left of `atomic_folder` does not count.
    """
    try:
        names = {entry.name for entry in os.scandir(path)} if path.exists() else set()
    except OSError as error:
        raise UserError(f"{flag}: {path} cannot be used: {error.strerror}") from error
    if names - {PARTIAL}:
        raise UserError(f"{flag}: {path} is not empty; choose a new or an empty folder as {flag}")


@contextlib.contextmanager
def _locked_folder(path: Path) -> Iterator[None]:
    """Locks a folder, as far as its file system has locks.

    Raises:
      BlockingIOError: another process has locked it, or has just moved it away.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # a file system without locks
        if not (path.is_dir() and os.path.samestat(os.fstat(descriptor), path.stat())):
            raise BlockingIOError(errno.EAGAIN, "it was moved", str(path))
        yield
    finally:
        os.close(descriptor)


def _move_content(partial: Path, target: Path) -> None:
    """Makes a folder's content that of another folder, which is missing or empty."""
    for entry in entries_below(partial):
        if entry.is_file(follow_symlinks=False):
            with open_regular(Path(entry.path)) as file:
                os.fsync(file.fileno())
    if partial.parent != target:
        partial.rename(target)
        return
    # The temporary folder is inside the target, whose content cannot be replaced in one call.
    for path in list(partial.iterdir()):
        path.rename(target / path.name)


def write_atomic(path: Path, text: str) -> None:
    """Writes UTF-8 text with `atomic_writer`."""
    with atomic_writer(path) as file:
        file.write(text.encode())


def open_to_append(path: Path) -> TextIO:
    """Opens a UTF-8 text file, line-buffered, to read and append; creates it if missing.

    Raises:
      OSError: the file cannot be written, or is not regular.
    """
    return open(path, "a+", buffering=1, encoding="utf-8", opener=_open_descriptor)


def open_locked(path: Path, *, wait: bool = False) -> TextIO:
    """Opens a file like `open_to_append` and locks it.

    No other process can lock it until the file is closed or this process ends.

    Args:
      wait: wait for a process that holds the lock.

    Raises:
      BlockingIOError: another process holds the lock, and `wait` is False.
      NoLocksError: the file system has no locks.
      OSError: the file cannot be opened.
    """
    file = open_to_append(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        file.close()
        if isinstance(error, BlockingIOError):
            raise
        raise NoLocksError(error.errno, error.strerror, str(path)) from error
    return file


def describe_process() -> str:
    """Text that identifies this process: its number, its machine and the time in microseconds."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
    return f"process {os.getpid()} on {os.uname().nodename}, since {now}"


def remove(path: Path) -> None:
    """Deletes a file, a link, or a folder with its content; does nothing if there is none.

    Other processes may add to the folder or delete it at the same time.
    """
    for attempt in range(1, _REMOVE_ATTEMPTS + 1):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            return
        except OSError as error:
            changes_meanwhile = error.errno in (errno.ENOTEMPTY, errno.ENOENT)
            if not changes_meanwhile or attempt == _REMOVE_ATTEMPTS:
                raise


def _open_descriptor(path: str, flags: int) -> int:
    """Descriptor of a regular file. Does not block on a pipe."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", path) from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


_HEADER_BYTES = 64  # hexadecimal digits; content of any dtype is aligned after them


def remake(path: Path, key: str, make: Callable[[BinaryIO], object]) -> memoryview:
    """Returns the content of a file that can be made again, mapped into memory; makes the file
    unless it is there: caches of tokens, scores and measurements.

    The file begins with the SHA-256 of the key and of its content. Anything else in its place is
    made again without a word. Processes that make it at the same time write one after the other.

    Args:
      key: what the content is made of; a file of another key is made again.
      make: writes the content to an open file.

    Raises:
      OSError: the file cannot be written.
    """
    content = read_made(path, key)
    if content is not None:
        return content
    write_made(path, key, make)
    content = read_made(path, key)
    if content is None:
        raise OSError(errno.EIO, "what was written is not what is read", str(path))
    return content


def kept_json(name: str, key: str, make: Callable[[], Any]) -> Any:
    """Returns what `make` returns, kept as JSON in the file `name` of the user's cache folder until
    the key changes; made again by each process where nothing can be kept."""
    path = cache_folder(name)
    with contextlib.suppress(OSError):
        if path is not None:
            return json.loads(
                bytes(remake(path, key, lambda file: file.write(json.dumps(make()).encode())))
            )
    return make()


def read_made(path: Path, key: str) -> memoryview | None:
    """Returns the content of a file, mapped into memory; None if it has to be made.

    An array of it can be made by `np.frombuffer`.
    """
    try:
        with open_regular(path) as file:
            header = file.read(_HEADER_BYTES)
            if header != _digest(key, file):
                return None
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:
        return None
    return memoryview(mapped)[_HEADER_BYTES:]


def write_made(path: Path, key: str, make: Callable[[BinaryIO], object]) -> None:
    """Writes a file that `read_made` reads; arguments and errors as of `remake`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        remove(path)  # a file replaces a file or a link, but no folder
    with atomic_writer(path) as file:
        file.write(bytes(_HEADER_BYTES))
        make(file)
        file.flush()
        with open_regular(Path(os.fsdecode(file.name))) as written:
            written.seek(_HEADER_BYTES)
            header = _digest(key, written)
        file.seek(0)
        file.write(header)


def _digest(key: str, file: BinaryIO) -> bytes:
    """SHA-256 of the key and of the rest of a file: 100 ms for 200 MB."""
    digest = hashlib.sha256(key.encode())
    digest.update(b"\0")
    return hashlib.file_digest(file, lambda: digest).hexdigest().encode()  # type: ignore[arg-type]
