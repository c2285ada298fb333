"""SHA-256 manifests: whether the files of a folder are still those that were written.

Orbax keeps no checksum of contents: an array with a flipped bit would restore without an error.
"""

import contextlib
import errno
import hashlib
import json
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError

MANIFEST = "manifest.json"


def write(folder: Path) -> None:
    """Records size (bytes) and SHA-256 of every file in the subfolders of `folder`.

    Files directly in `folder` are left out: Orbax rewrites them while it commits, and nothing is
    restored from them.
    """
    files = sorted(path for path in folder.glob("*/**/*") if path.is_file())
    entries = {path.relative_to(folder).as_posix(): _entry(path) for path in files}
    (folder / MANIFEST).write_text(json.dumps(entries, indent=1) + "\n")


def damage(folder: Path, subfolders: Collection[str] | None = None) -> str | None:
    """A text that names the first damaged file and the reason; None if all are as written.

    Files that the manifest does not list are ignored.

    Args:
      folder: of a checkpoint.
      subfolders: where to look; None: everywhere.

    Raises:
      UserError: a file may be intact but cannot be read now, for lack of rights or by a fault of
        the disk.
    """
    try:
        with _proving_damage(folder / MANIFEST):
            _require_file(folder / MANIFEST, _LARGEST)
            entries = json.loads((folder / MANIFEST).read_text()).items()
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, AttributeError, RecursionError):
        return f"{MANIFEST} cannot be read"
    for name, entry in entries:
        if subfolders is not None and name.split("/")[0] not in subfolders:
            continue
        if ".." in name.split("/") or name.startswith("/"):
            return f"{name} lies outside the folder"
        try:
            with _proving_damage(folder / name):
                if not _is_as_written(folder / name, entry):
                    return f"{name} is not what was written (its size or SHA-256 differs)"
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError)
            return f"{name} {'is missing' if missing else 'cannot be read'}"
    return None


_LARGEST = 2**26  # bytes of a manifest; one of a thousand files has 2**17

# What a file that was written whole cannot answer with; any other error may pass.
_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}


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


def _require_file(path: Path, largest: int | None = None) -> int:
    """The size of a regular file; ValueError for a pipe or a device, which may never end, and for
    more than `largest` bytes."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or (largest is not None and status.st_size > largest):
        raise ValueError("no regular file, or too large")
    return status.st_size


def _is_as_written(path: Path, entry: Any) -> bool:
    # The size first: a file of another one need not be read.
    of_size = isinstance(entry, dict) and entry.get("size") == _require_file(path)
    return of_size and _entry(path) == entry


def _entry(path: Path) -> dict[str, int | str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}
