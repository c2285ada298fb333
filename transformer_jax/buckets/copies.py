# SPDX-License-Identifier: Apache-2.0
"""Copies, on this machine, of files at an address.

    CACHE/fetched/ADDRESS/files/NAME/     to read: `fetch_folder` updates what has changed
    CACHE/workdirs/ADDRESS/files/NAME/    to write: a `Mirror` uploads what changes

Beside `files/` of each: `address`; `lock`, held while a process writes there; `index.json`, the
fetched versions; `id`, unique to this copy; `staging/`, of the mirror.
"""

import contextlib
import hashlib
import json
import logging
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from transformer_jax.buckets.bucket import (
    Bucket,
    NotInBucketError,
    download_files,
    is_address,
    run_in_parallel,
)
from transformer_jax.buckets.lease import LEASE_FOLDER, Lease, last_copy
from transformer_jax.buckets.mirror import Mirror, MirrorLayout
from transformer_jax.errors import BusyError, UserError
from transformer_jax.runtime import files

logger = logging.getLogger(__name__)

_FILES = "files"
_ADDRESS = "address"
_INDEX = "index.json"
_ID = "id"


def fetch_folder(
    address: str | Path,
    is_wanted: Callable[[str], bool] = lambda name: True,
    layout: MirrorLayout | None = None,
    below: str = "",
) -> Path:
    """Downloads the files at an address that are new or have changed; a local path stays.

    Args:
      is_wanted: returns True for the names of files to download.
      layout: leaves out temporary and incomplete files.
      below: name of the only file or folder to look at; "": all files.

    Returns:
      The folder of the copy. It is to be read only: other processes may update it at any time.

    Raises:
      UserError: nothing is there, or it cannot be read.
    """
    if not is_address(address):
        return Path(address)
    address = str(address)
    bucket = Bucket(address)
    copy = _Copy("fetched", address)
    with copy.locked(wait=True):
        versions = {
            name: entry.version
            for name, entry in bucket.entries(below).items()
            if not name.startswith(f"{LEASE_FOLDER}/")
        }
        if not versions:
            raise NotInBucketError(f"there is nothing at {address}{below and '/'}{below}")
        before = _read_index(copy.home / _INDEX)
        index = dict(before)
        folder = copy.folder
        looked_at = {name for name in index if not below or f"{name}/".startswith(f"{below}/")}
        for name in looked_at - versions.keys():
            files.remove(files.path_below(folder, name))
            del index[name]
        complete = layout.complete(versions) if layout else versions.keys()
        needed = {
            name
            for name in filter(is_wanted, complete)
            if index.get(name) != versions[name] or not files.path_below(folder, name).is_file()
        }
        download_files(bucket, folder, needed)
        # Only now: files whose download was interrupted are downloaded again.
        index |= {name: versions[name] for name in needed}
        if index != before:
            files.write_atomic(copy.home / _INDEX, json.dumps(index))
    return folder


def fetch_file(address: str | Path) -> Path:
    """Downloads a file at an address if it is new or has changed; a local path stays."""
    if not is_address(address):
        return Path(address)
    folder, _, name = str(address).rpartition("/")
    return files.path_below(fetch_folder(folder, below=name), name)


def fetch_matching(pattern: str) -> list[Path]:
    """Downloads the files whose names match the last part of an address, such as "*.txt"."""
    folder, _, names = pattern.rpartition("/")

    def matches(name: str) -> bool:
        return "/" not in name and fnmatchcase(name, names)

    return sorted(path for path in fetch_folder(folder, matches).iterdir() if matches(path.name))


@contextlib.contextmanager
def working_copy(address: str, layout: MirrorLayout) -> Iterator[Path]:
    """A folder to write to, whose files are uploaded to an address while the block runs.

    If this machine was the last to write to the address, its copy is used again, since it may hold
    more than the bucket. Otherwise the copy is cleared and downloaded.

    Raises:
      UserError: another process writes there; or an error of `Mirror`.
    """
    bucket = Bucket(address)
    copy = _Copy("workdirs", address)
    staging = copy.home / "staging"
    with copy.locked(wait=False):
        if not (copy.home / _ID).exists():
            files.write_atomic(copy.home / _ID, uuid.uuid4().hex)
        last = last_copy(bucket)
        if last != copy.read_id():
            files.remove(copy.home / _FILES)
        files.remove(staging)
        folder = copy.folder
        folder.mkdir(parents=True, exist_ok=True)
        logger.info("%s: files are written to %s and uploaded from there", address, folder)
        lease = Lease(bucket, copy.read_id(), last, files.describe_process())
        with lease, Mirror(bucket, folder, staging, layout, lease):
            yield folder


def working_copy_id(address: str) -> str:
    """Unique id of the working copy that this process sees; "" if it sees none."""
    with contextlib.suppress(OSError, UserError):
        return _Copy("workdirs", address).read_id()
    return ""


def write_back(path: Path) -> None:
    """Uploads a file that was written into a fetched copy; does nothing for other files."""
    for folder in path.absolute().parents:
        home = folder.parent.parent
        if folder.parent.name == _FILES and home.parent == files.cache_folder("fetched"):
            name = path.absolute().relative_to(folder).as_posix()
            address = files.read_regular(home / _ADDRESS).decode()
            Bucket(address).write(name, path.read_bytes())


@contextlib.contextmanager
def folder_to_upload(folder: str) -> Iterator[Path]:
    """A folder to write to: `folder` itself, or one that is uploaded to it if it is an address.

    The upload begins when the block ends.

    Raises:
      UserError: the address is not empty, or cannot be written.
    """
    if not is_address(folder):
        yield Path(folder)
        return
    bucket = Bucket(folder)
    if bucket.entries():
        raise UserError(f"{folder} is not empty; choose a new address")
    with tempfile.TemporaryDirectory() as local:
        yield Path(local)
        paths = [path for path in Path(local).rglob("*") if path.is_file()]
        run_in_parallel(lambda path: bucket.upload(path, path.relative_to(local).as_posix()), paths)


class _Copy:
    """The copy of an address of one kind, "fetched" or "workdirs"."""

    def __init__(self, kind: str, address: str) -> None:
        root = files.cache_folder(kind)
        if root is None:
            raise UserError(f"{address} needs a copy here, and no home folder: set XDG_CACHE_HOME")
        self.address = address.rstrip("/")
        digest = hashlib.sha256(self.address.encode()).hexdigest()[:8]
        self.home = root / f"{re.sub('[^A-Za-z0-9.-]+', '_', self.address)[-80:]}-{digest}"

    @property
    def folder(self) -> Path:
        """Folder of the files, with the name of the folder at the address."""
        name = re.sub("[^A-Za-z0-9._-]", "_", self.address.rpartition("/")[2])
        return self.home / _FILES / (name if files.is_safe_name(name) else "_")

    @contextlib.contextmanager
    def locked(self, wait: bool) -> Iterator[None]:
        """Makes the folder of the copy and locks it."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.write_atomic(self.home / _ADDRESS, self.address)
        try:
            file = files.open_locked(self.home / "lock", wait=wait)
        except BlockingIOError as error:
            raise BusyError(
                f"{self.address}: another process on this machine is training there; "
                "wait for it, or choose another --workdir"
            ) from error
        with file:
            yield

    def read_id(self) -> str:
        """The id of the copy; OSError if it has none yet."""
        return files.read_regular(self.home / _ID).decode()


def _read_index(path: Path) -> dict[str, str]:
    """Versions of the fetched files, by name; empty if they are not known."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}
