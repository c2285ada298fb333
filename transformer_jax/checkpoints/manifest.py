# SPDX-License-Identifier: Apache-2.0
"""SHA-256 manifests of checkpoints, with which damaged files are found.

Orbax keeps no checksum of contents: an array with a flipped bit would restore without an error.
"""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts
from transformer_jax.runtime.files import is_safe_name, open_regular, read_regular, write_atomic

MANIFEST = "manifest.json"
_DIGITS = 32  # of a SHA-256 in a message

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
    files = sorted(path for path in folder.glob("*/**/*") if path.is_file())
    write_entries(folder, {path.relative_to(folder).as_posix(): _entry_of(path) for path in files})


def add_file(folder: Path, name: str) -> None:
    """Records one more file, by its path in `folder`, whose other files are known to be intact."""
    write_entries(folder, read_entries(folder) | {name: _entry_of(folder / name)})


def read_entries(folder: Path) -> dict[str, Any]:
    """Reads the entries of a manifest, {path in `folder`: {"size": bytes, "sha256": ...}}.

    Raises:
      OSError: the manifest is missing, or is not a regular file.
      ValueError: it is damaged.
    """
    sealed = json.loads(read_regular(folder / MANIFEST))
    if not isinstance(sealed, dict):
        raise ValueError("no object")
    if all("/" in name for name in sealed):  # only paths of files in subfolders
        entries = sealed  # as older versions wrote it, without a digest of its own
    elif set(sealed) != {"files", "sha256"} or sealed["sha256"] != _digest(sealed["files"]):
        raise ValueError("its SHA-256 differs")
    else:
        entries = sealed["files"]
    if not all(map(is_safe_name, entries)):
        raise ValueError("a name in it leads out of the folder")
    return entries


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
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"size": os.fstat(file.fileno()).st_size, "sha256": digest}


def checkpoint_id(folder: Path) -> str:
    """The step and the SHA-256 of the manifest, which identify a checkpoint."""
    try:
        content = read_regular(folder / MANIFEST)
    except OSError:
        return f"step {folder.name}"  # `find_damage` reports the error
    return f"step {folder.name}, SHA-256 {hashlib.sha256(content).hexdigest()[:_DIGITS]}"


def item_id(folder: Path, *items: str) -> str | None:
    """A digest of the files of items, which adding a score does not change; None if the manifest
    cannot be read."""
    try:
        entries = read_entries(folder)
    except (OSError, ValueError):
        return None
    files = {name: entry for name, entry in entries.items() if name.split("/")[0] in items}
    return f"SHA-256 {_digest(files)[:_DIGITS]}"


def find_damage(folder: Path, subfolders: Collection[str] | None = None) -> str | None:
    """Names the first damaged file and the reason; returns None if all files are intact.

    Files that the manifest does not list are ignored.

    Args:
      subfolders: where to look; None: everywhere.

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
    for name, entry in entries.items():
        if subfolders is not None and name.split("/")[0] not in subfolders:
            continue
        try:
            with _proving_damage(folder / name):
                if _entry_of(folder / name) != entry:
                    return f"{name} is not what was written (its size or SHA-256 differs)"
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError)
            return f"{name} {'is missing' if missing else 'cannot be read'}"
    return None


def find_damage_in_job(folder: Path, subfolders: Collection[str] | None = None) -> str | None:
    """Runs `find_damage` in process 0, and in processes that have a copy of their own; all return
    what one of them finds.

    Raises:
      UserError: in all processes, if `find_damage` raises it in one, or if they see different
        checkpoints.
    """
    file = _identity(folder / MANIFEST)
    shares_file = file == hosts.gather(file)[0]

    def verify() -> tuple[str | None, hosts.Fingerprint]:
        verifies = hosts.is_primary() or not shares_file
        damage = find_damage(folder, subfolders) if verifies else None
        return damage, {"checkpoint": checkpoint_id(folder)}

    damages = hosts.gather(hosts.require_agreement(verify))
    return next(filter(None, damages), None)


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
