"""SHA-256 manifests: whether the files of a folder are still those that were written.

Orbax keeps no checksum of contents: an array with a flipped bit would restore without an error.
"""

import contextlib
import errno
import hashlib
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import jax

from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts
from transformer_jax.runtime.files import (
    METADATA_BYTES,
    entries_below,
    is_safe_name,
    open_regular,
    read_regular,
    write_atomic,
)

MANIFEST = "manifest.json"
_DIGITS = 32  # of a SHA-256 that a person compares


def write(folder: Path) -> None:
    """Records size (bytes) and SHA-256 of every file in the subfolders of `folder`.

    Files directly in `folder` are left out: Orbax rewrites them while it commits, and nothing is
    restored from them.
    """
    write_entries(folder, entries_of(folder, file_sizes(folder)))


def file_sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file that a manifest of `folder` lists, by its path there, in their order."""
    files = sorted(path for path in folder.glob("*/**/*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def share(sizes: Mapping[str, int], process: int, count: int) -> set[str]:
    """The files that one of `count` processes reads: the largest first, each goes to the process
    that has the fewest bytes so far."""
    own: set[str] = set()
    nbytes = [0] * count
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        reader = nbytes.index(min(nbytes))
        nbytes[reader] += sizes[name]
        if reader == process:
            own.add(name)
    return own


def entries_of(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """Size and SHA-256 of these files of `folder`, as `read_entries`."""
    return {name: _entry_of(folder / name) for name in names}


def described(folder: Path) -> str:
    """The folder of a step by the digest of its manifest, which processes compare."""
    try:
        content = read_regular(folder / MANIFEST, METADATA_BYTES)
    except OSError:
        return f"step {folder.name}"  # who restores it says what is wrong
    return f"step {folder.name}, SHA-256 {hashlib.sha256(content).hexdigest()[:_DIGITS]}"


def add(folder: Path, name: str) -> None:
    """Records one more file, by its path in `folder`, whose other files are known to be intact."""
    write_entries(folder, read_entries(folder) | {name: _entry_of(folder / name)})


def read_entries(folder: Path) -> dict[str, Any]:
    """What is known of each file, {path in `folder`: {"size": bytes, "sha256": ...}}.

    Raises:
      OSError: the manifest is not there, or no regular file of a moderate size.
      ValueError: it is damaged.
    """
    read = json.loads(read_regular(folder / MANIFEST, METADATA_BYTES))
    if not isinstance(read, dict):
        raise ValueError("no object")
    if all("/" in name for name in read):
        return read  # as older versions wrote it, without a digest of its own
    if set(read) != {"files", "sha256"} or read["sha256"] != _digest(read["files"]):
        raise ValueError("its SHA-256 differs")
    return read["files"]


def write_entries(folder: Path, entries: dict[str, Any]) -> None:
    """Writes them with a digest of their own: in a damaged name, no file would be missed."""
    sealed = {"files": entries, "sha256": _digest(entries)}
    write_atomic(folder / MANIFEST, json.dumps(sealed, indent=1) + "\n")


def _digest(entries: Any) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _entry_of(path: Path) -> dict[str, int | str]:
    with open_regular(path) as file:
        return _entry(file)


def damage(
    folder: Path,
    subfolders: Collection[str] | None = None,
    most: int | None = None,
    reader: tuple[int, int] = (0, 1),
) -> str | None:
    """A text that names the first damaged file and the reason; None if all are as written.

    Files that the manifest does not list are ignored.

    Args:
      folder: of a checkpoint.
      subfolders: where to look; None: everywhere.
      most: bytes that the files there may have, all together; None: any number.
      reader: (process, of how many), each of which reads its share of the files alone.

    Raises:
      UserError: a file may be intact but cannot be read now, for lack of rights or by a fault of
        the disk; or there is more to read than a run can have written.
    """
    try:
        with _proving_damage(folder / MANIFEST):
            entries = read_entries(folder)
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, RecursionError):
        return f"{MANIFEST} cannot be read"
    _require_bounded(folder, subfolders, most)
    if subfolders is not None:
        entries = {name: entries[name] for name in entries if name.split("/")[0] in subfolders}
    own = share({name: _size(entry) for name, entry in entries.items()}, *reader)
    for name in entries:
        if not is_safe_name(name):
            return f"{name!r} is outside the folder"
        if name not in own:
            continue
        try:
            with _proving_damage(folder / name):
                if not _is_as_written(folder / name, entries[name]):
                    return f"{name} is not what was written (its size or SHA-256 differs)"
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError)
            return f"{name} {'is missing' if missing else 'cannot be read'}"
    return None


_ARRAYS = "d"  # the folders in which Orbax keeps the content of arrays

# What a file that was written whole cannot answer with; any other error may pass.
_DAMAGE = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EINVAL, errno.EFBIG, errno.ENXIO),
}


@contextlib.contextmanager
def _proving_damage(path: Path) -> Iterator[None]:
    """Turns an error that does not prove damage into a UserError."""
    try:
        yield
    except OSError as error:
        if error.errno in _DAMAGE:
            raise
        raise UserError(
            f"{path} cannot be read: {error.strerror}; it may be intact and is kept: "
            "make it readable, or choose another checkpoint"
        ) from error


def _require_bounded(folder: Path, subfolders: Collection[str] | None, most: int | None) -> None:
    """Raises UserError where files are larger than any that a run wrote.

    The manifest may list them as they are, and does not list all that Orbax reads.
    """
    total = size = 0
    for entry in entries_below(folder):
        with contextlib.suppress(OSError):  # gone, as a run tidies up, or too deep to be read
            size = entry.stat(follow_symlinks=False).st_size
        name = Path(entry.path).relative_to(folder)
        if subfolders is None or name.parts[0] in subfolders:
            total += size
        too_large = size > METADATA_BYTES and name.parent.name != _ARRAYS
        if too_large or (most is not None and total > most):
            raise UserError(
                f"{entry.path} has {size:,} bytes, more than a run of this config writes; "
                "take another checkpoint"
            )


def _is_as_written(path: Path, entry: Any) -> bool:
    with open_regular(path) as file:
        # The size first: a file of another one need not be read.
        of_size = isinstance(entry, dict) and entry.get("size") == os.fstat(file.fileno()).st_size
        return of_size and _entry(file) == entry


def _size(entry: Any) -> int:
    """Bytes of a file by its entry, which may be damaged."""
    size = entry.get("size") if isinstance(entry, dict) else None
    return size if isinstance(size, int) else 0


def _entry(file: BufferedReader) -> dict[str, int | str]:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": os.fstat(file.fileno()).st_size, "sha256": digest}


# FOLDED checkpoints.shares: A checkpoint hashed by all processes of a job, each its share of the
# files. Of 84 GB on 32 hosts, each reads 2.6 GB, when it is saved and when it is restored.


_SECONDS_OF_A_SAVE = 3600  # until all is written
_SECONDS_TO_HASH = 60  # a share, once process 0 has hashed its own


def damage_in_job(
    folder: Path, subfolders: Collection[str] | None = None, most: int | None = None
) -> str | None:
    """As `manifest.damage`, in all processes together: what one of them finds, all return. Where
    they see one folder each reads its share of it, and all of a copy of its own.

    Raises:
      UserError: as there, in one; or they see different files. In all.
    """
    shared = len({*hosts.gather(_identity(folder / MANIFEST))}) == 1
    reader = (jax.process_index(), hosts.num_processes()) if shared else (0, 1)
    own, _ = hosts.require_agreement(
        lambda: (
            damage(folder, subfolders, most, reader),
            {"checkpoint": described(folder)},
        )
    )
    return next(filter(None, hosts.gather(own)), None)


def _identity(path: Path) -> str:
    """Alike in two processes that see the same file, not where each has a copy."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return f"{status.st_ino} {status.st_mtime_ns}"
    return ""  # who reads it says what is wrong


def write_in_job(folder: Path, name: str, count: int) -> None:
    """As `manifest.write`, in process 0 of `count`, whose others call `help_to_write`; what they do
    not hash in time, it hashes itself. Any thread may.

    Args:
      folder: of a step, all of whose files are written.
      name: of this save, alike in all processes; no other save of the job has it.
      count: of processes.
    """
    sizes = file_sizes(folder)
    hosts.kv_set(f"{name}/files", sizes)
    entries = entries_of(folder, share(sizes, 0, count))
    until = time.monotonic() + _SECONDS_TO_HASH
    for process in range(1, count):
        theirs = hosts.kv_get(f"{name}/{process}", until - time.monotonic()) or {}
        # Of another size: the file system shows that process a file of before.
        entries |= {file: one for file, one in theirs.items() if one["size"] == sizes[file]}
    hosts.kv_delete(name)
    entries |= entries_of(folder, sizes.keys() - entries.keys())
    write_entries(folder, {file: entries[file] for file in sizes})


def help_write_in_job(folder: Path, name: str, process: int, count: int) -> None:
    """Hashes the share of another process than the first, as soon as that one asks for it."""
    sizes = hosts.kv_get(f"{name}/files", _SECONDS_OF_A_SAVE)
    if sizes is None:
        return  # the save failed
    entries = {}
    with contextlib.suppress(OSError):  # process 0 sees to it
        entries = entries_of(folder, share(sizes, process, count))
    hosts.kv_set(f"{name}/{process}", entries)
