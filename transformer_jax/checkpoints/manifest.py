"""SHA-256 manifests: whether the files of a folder are still those that were written.

Orbax keeps no checksum of contents: an array with a flipped bit would restore without an error.
"""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path

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
    """
    try:
        entries = json.loads((folder / MANIFEST).read_text()).items()
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, AttributeError, RecursionError):
        return f"{MANIFEST} cannot be read"
    for name, entry in entries:
        if subfolders is not None and name.split("/")[0] not in subfolders:
            continue
        try:
            if _entry(folder / name) != entry:
                return f"{name} is not what was written (its size or SHA-256 differs)"
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError)
            return f"{name} {'is missing' if missing else 'cannot be read'}"
    return None


def _entry(path: Path) -> dict[str, int | str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}
