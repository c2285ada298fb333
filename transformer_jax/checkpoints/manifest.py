# SPDX-License-Identifier: Apache-2.0
"""SHA-256 manifests of checkpoints, with which damaged files are found.

Orbax keeps no checksum of contents: an array with a flipped bit would restore without an error.

In a job of several processes each hashes its share of the files, when a checkpoint is saved and
when it is restored: for 84 GB on 32 hosts, each reads 2.6 GB.
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
from transformer_jax.runtime.files import is_below, open_regular, read_regular, write_atomic

MANIFEST = "manifest.json"
_DIGITS = 32  # of a SHA-256 in a message
_SECONDS_OF_A_SAVE = 3600  # how long other processes wait until all files are written
_SECONDS_TO_HASH = 60  # how long process 0 waits for the others after it has hashed its own share

# Errors that a file which was written whole cannot give; any other error may be temporary.
_DAMAGE = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EINVAL, errno.ENXIO),
}


def write_manifest(folder: Path) -> None:
    """Records size (bytes) and SHA-256 of every file in the subfolders of `folder`.

    Files directly in `folder` are left out: Orbax rewrites them while it commits, and nothing is
    restored from them.
    """
    write_entries(folder, entries_of(folder, file_sizes(folder)))


def write_manifest_in_job(folder: Path, name: str, count: int) -> None:
    """Writes the manifest in process 0 of `count`; the other processes hash their shares.

    The others call `help_write_manifest`. What they do not hash in time, process 0 hashes itself.
    It may be called in any thread.

    Args:
      folder: the folder of a step, all of whose files are written.
      name: the name of this save, the same in all processes and used by no other save of the job.
    """
    sizes = file_sizes(folder)
    hosts.kv_set(f"{name}/files", sizes)
    entries = entries_of(folder, share_of_files(sizes, 0, count))
    deadline = time.monotonic() + _SECONDS_TO_HASH
    for process in range(1, count):
        share = hosts.kv_get(f"{name}/{process}", deadline - time.monotonic()) or {}
        # Skipped where the size differs: the file system shows that process an old file.
        entries |= {file: entry for file, entry in share.items() if entry["size"] == sizes[file]}
    hosts.kv_delete(name)
    entries |= entries_of(folder, sizes.keys() - entries.keys())
    write_entries(folder, {file: entries[file] for file in sizes})


def help_write_manifest(folder: Path, name: str, process: int, count: int) -> None:
    """Hashes the share of a process other than 0, as soon as process 0 asks for it."""
    sizes = hosts.kv_get(f"{name}/files", _SECONDS_OF_A_SAVE)
    if sizes is None:
        return  # the save failed
    entries = {}
    with contextlib.suppress(OSError):  # process 0 hashes what is missing
        entries = entries_of(folder, share_of_files(sizes, process, count))
    hosts.kv_set(f"{name}/{process}", entries)


def add_file(folder: Path, name: str) -> None:
    """Records one more file, by its path in `folder`, whose other files are known to be intact."""
    write_entries(folder, read_entries(folder) | {name: _entry_of(folder / name)})


def file_sizes(folder: Path) -> dict[str, int]:
    """Size in bytes of every file that a manifest of `folder` lists, sorted by path."""
    files = sorted(path for path in folder.glob("*/**/*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def share_of_files(sizes: Mapping[str, int], process: int, count: int) -> set[str]:
    """The files that one of `count` processes reads.

    They are assigned from the largest down, each to the process with the fewest bytes so far.
    """
    share: set[str] = set()
    nbytes = [0] * count
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        reader = nbytes.index(min(nbytes))
        nbytes[reader] += sizes[name]
        if reader == process:
            share.add(name)
    return share


def entries_of(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """Computes the entries of these files, {path in `folder`: {"size": bytes, "sha256": ...}}."""
    return {name: _entry_of(folder / name) for name in names}


def read_entries(folder: Path) -> dict[str, Any]:
    """Reads the entries of a manifest, {path in `folder`: {"size": bytes, "sha256": ...}}.

    Raises:
      OSError: the manifest is missing, or is not a regular file.
      ValueError: it is damaged.
    """
    sealed = json.loads(read_regular(folder / MANIFEST))
    if not isinstance(sealed, dict):
        raise ValueError("no object")
    if all("/" in name for name in sealed):
        return sealed  # as older versions wrote it, without a digest of its own
    if set(sealed) != {"files", "sha256"} or sealed["sha256"] != _digest(sealed["files"]):
        raise ValueError("its SHA-256 differs")
    return sealed["files"]


def write_entries(folder: Path, entries: dict[str, Any]) -> None:
    """Writes a manifest with a digest of its own entries.

    Without it, a flipped bit in a file's name could hide that the file is missing.
    """
    sealed = {"files": entries, "sha256": _digest(entries)}
    write_atomic(folder / MANIFEST, json.dumps(sealed, indent=1) + "\n")


def _digest(entries: Any) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _entry_of(path: Path) -> dict[str, int | str]:
    with open_regular(path) as file:
        return _entry(file)


def _entry(file: BufferedReader) -> dict[str, int | str]:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": os.fstat(file.fileno()).st_size, "sha256": digest}


def checkpoint_id(folder: Path) -> str:
    """The step and the SHA-256 of the manifest, which identify a checkpoint."""
    try:
        content = read_regular(folder / MANIFEST)
    except OSError:
        return f"step {folder.name}"  # `find_damage` reports the error
    return f"step {folder.name}, SHA-256 {hashlib.sha256(content).hexdigest()[:_DIGITS]}"


def find_damage(
    folder: Path, subfolders: Collection[str] | None = None, reader: tuple[int, int] = (0, 1)
) -> str | None:
    """Names the first damaged file and the reason; returns None if all files are intact.

    Files that the manifest does not list are ignored.

    Args:
      subfolders: where to look; None: everywhere.
      reader: (process, number of processes); a process verifies its share of the files alone.

    Raises:
      UserError: a file may be intact but cannot be read now (permissions, a disk fault).
    """
    try:
        with _proving_damage(folder / MANIFEST):
            entries = read_entries(folder)
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, RecursionError):
        return f"{MANIFEST} cannot be read"
    if subfolders is not None:
        entries = {name: entries[name] for name in entries if name.split("/")[0] in subfolders}
    share = share_of_files({name: _size(entry) for name, entry in entries.items()}, *reader)
    for name in entries:
        if not is_below(folder, name):
            return f"{name!r} is outside the folder"
        if name not in share:
            continue
        try:
            with _proving_damage(folder / name):
                if not _is_as_written(folder / name, entries[name]):
                    return f"{name} is not what was written (its size or SHA-256 differs)"
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError)
            return f"{name} {'is missing' if missing else 'cannot be read'}"
    return None


def find_damage_in_job(folder: Path, subfolders: Collection[str] | None = None) -> str | None:
    """Runs `find_damage` in all processes together; all return what one of them finds.

    Processes that see the same folder verify a share of it each. A process with a copy of its own
    verifies all of it.

    Raises:
      UserError: in all processes, if `find_damage` raises it in one, or if they see different
        checkpoints.
    """
    shared = len({*hosts.gather(_identity(folder / MANIFEST))}) == 1
    reader = (jax.process_index(), hosts.num_processes()) if shared else (0, 1)
    damage, _ = hosts.require_agreement(
        lambda: (find_damage(folder, subfolders, reader), {"checkpoint": checkpoint_id(folder)})
    )
    return next(filter(None, hosts.gather(damage)), None)


def _identity(path: Path) -> str:
    """A text that is equal in two processes if they see the same file, not copies of it."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return f"{status.st_ino} {status.st_mtime_ns}"
    return ""  # `find_damage` reports the error


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


def _is_as_written(path: Path, entry: Any) -> bool:
    with open_regular(path) as file:
        # The size first: a file of another size need not be read.
        has_size = isinstance(entry, dict) and entry.get("size") == os.fstat(file.fileno()).st_size
        return has_size and _entry(file) == entry


def _size(entry: Any) -> int:
    """Bytes of a file by its entry; 0 if the entry is damaged."""
    size = entry.get("size") if isinstance(entry, dict) else None
    return size if isinstance(size, int) else 0
