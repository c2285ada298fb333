"""Copies on this machine of what lies at an address.

    CACHE/fetched/ADDRESS/files/NAME/     to read: what has changed at the address is brought
    CACHE/workdirs/ADDRESS/files/NAME/    to write: a `mirror` brings what changes to the bucket

Beside `files/` of each: `address`; `lock`, held while a process writes there; `index.json`, what
was fetched; `id`, a name that no other copy has; `pins/`, of the mirror.
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

from transformer_jax.buckets.bucket import Bucket, MirrorLayout, Missing, at_once, bring, is_address
from transformer_jax.buckets.lease import FOLDER, Lease, last_copy
from transformer_jax.buckets.mirror import Mirror
from transformer_jax.errors import UserError
from transformer_jax.runtime import processes
from transformer_jax.runtime.files import (
    METADATA_BYTES,
    SETTINGS_BYTES,
    cache_folder,
    is_safe_name,
    open_locked,
    path_below,
    read_regular,
    remove,
    write_atomic,
)

logger = logging.getLogger(__name__)

_FILES, _ADDRESS, _LOCK, _INDEX, _ID, _PINS = "files", "address", "lock", "index.json", "id", "pins"


def fetched(
    address: str,
    wanted: Callable[[str], bool] = lambda name: True,
    layout: MirrorLayout | None = None,
    below: str = "",
) -> Path:
    """A folder with the files that lie at an address now; what is there already is not brought
    again. It is to be read, and may be fetched anew by others at any time.

    Args:
      address: of a folder.
      wanted: whether a file is needed, by its name.
      layout: leaves out what is on its way.
      below: the file or folder to look at; "": all.

    Raises:
      UserError: nothing lies there, or it cannot be read.
    """
    bucket, home = Bucket(address), _home("fetched", address)
    with _locked(home, wait=True):
        there = {
            name: entry.version
            for name, entry in bucket.entries(below).items()
            if not name.startswith(f"{FOLDER}/")
        }
        if not there:
            raise Missing(f"there is nothing at {address}{below and '/'}{below}")
        index, folder = _index(home), _files(home)
        for name in {name for name in index if _is_below(name, below)} - there.keys():
            if is_safe_name(name):  # else it was never written, or by an earlier version
                remove(path_below(folder, name))
            del index[name]
        known = layout.settled(there) if layout else there.keys()
        needed = {
            name
            for name in filter(wanted, known)
            if index.get(name) != there[name] or not path_below(folder, name).is_file()
        }
        bring(bucket, folder, needed)
        if needed or _index(home) != index:
            index |= {name: there[name] for name in needed}
            write_atomic(home / _INDEX, json.dumps(index))
    return folder


def fetched_file(address: str) -> Path:
    """A file that lies at an address, as `fetched`."""
    folder, _, name = address.rpartition("/")
    return path_below(fetched(folder, below=name), name)


def fetched_matches(pattern: str) -> list[Path]:
    """The files at an address whose names match its last part, in which "*" stands for any
    characters; as `fetched`. None where nothing matches."""
    folder, _, names = pattern.rpartition("/")

    def matches(name: str) -> bool:
        return "/" not in name and fnmatchcase(name, names)

    return sorted(path for path in fetched(folder, matches).iterdir() if matches(path.name))


@contextlib.contextmanager
def working_copy(address: str, layout: MirrorLayout) -> Iterator[Path]:
    """A folder to write to, whose files are brought to the address while the block runs.

    Where this machine's copy was the last one to be written, it may hold more than the bucket, and
    is gone on from; else it is made anew of what the bucket holds.

    Args:
      address: of a folder, which need not exist.
      layout: of the files.

    Raises:
      UserError: another process writes there, or as `mirror.Mirror`.
    """
    bucket, home = Bucket(address), _home("workdirs", address)
    with _locked(home, wait=False):
        last = last_copy(bucket)
        if last != _id(home):
            _clear(home)
        remove(home / _PINS)
        folder = _files(home)
        folder.mkdir(parents=True, exist_ok=True)
        logger.info("%s: written to %s, and brought from there", address, folder)
        lease = Lease(bucket, _id(home), last, processes.describe_process())
        with lease, Mirror(bucket, folder, home / _PINS, layout, lease):
            yield folder


def name_of_copy(address: str) -> str:
    """What no other copy is called but the one to write that this process sees; "" without any."""
    with contextlib.suppress(OSError, UserError):
        return read_regular(_place("workdirs", address) / _ID, SETTINGS_BYTES).decode()
    return ""


def send(path: Path) -> None:
    """Brings a file that was written to a fetched copy to where the copy is from; nothing where it
    lies in no copy."""
    for folder in path.absolute().parents:
        home = folder.parent.parent
        if folder.parent.name == _FILES and home.parent == cache_folder("fetched"):
            name = path.absolute().relative_to(folder).as_posix()
            Bucket(_address(home)).write(name, path.read_bytes())


@contextlib.contextmanager
def folder_to_upload(folder: str) -> Iterator[Path]:
    """A folder to write to: the one that is named; or, of an address, one that is brought there
    once the block ends.

    Raises:
      UserError: there is something at the address, or it cannot be written.
    """
    if not is_address(folder):
        yield Path(folder)
        return
    bucket = Bucket(folder)
    if bucket.entries():
        raise UserError(f"{folder} is not empty; choose a new address")
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)
        files = [path for path in Path(made).rglob("*") if path.is_file()]
        at_once(lambda path: bucket.upload(path, path.relative_to(made).as_posix()), files)


def _home(kind: str, address: str) -> Path:
    """The folder of a copy, made if absent."""
    home = _place(kind, address)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(home / _ADDRESS, address.rstrip("/"))
    return home


def _place(kind: str, address: str) -> Path:
    """Where the folder of a copy is."""
    root = cache_folder(kind)
    if root is None:
        raise UserError(f"{address} needs a copy here, and there is no home: set XDG_CACHE_HOME")
    address = address.rstrip("/")
    digest = hashlib.sha256(address.encode()).hexdigest()[:8]
    return root / f"{re.sub('[^A-Za-z0-9.-]+', '_', address)[-80:]}-{digest}"


@contextlib.contextmanager
def _locked(home: Path, wait: bool) -> Iterator[None]:
    try:
        file = open_locked(home / _LOCK, wait=wait)
    except BlockingIOError as error:
        raise UserError(
            f"{_address(home)}: another process on this machine is training there; "
            "wait for it, or choose another --workdir"
        ) from error
    with file:
        yield


def _files(home: Path) -> Path:
    """Where the files lie; the folder is called as the one at the address is."""
    name = re.sub("[^A-Za-z0-9._-]", "_", _address(home).rpartition("/")[2])
    return home / _FILES / (name if is_safe_name(name) else "_")


def _address(home: Path) -> str:
    return read_regular(home / _ADDRESS, SETTINGS_BYTES).decode()


def _index(home: Path) -> dict[str, str]:
    """What was fetched, {name: version}."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(read_regular(home / _INDEX, METADATA_BYTES)))
    return {}


def _id(home: Path) -> str:
    if not (home / _ID).exists():
        write_atomic(home / _ID, uuid.uuid4().hex)
    return read_regular(home / _ID, SETTINGS_BYTES).decode()


def _clear(home: Path) -> None:
    """Takes the files away, all at once."""
    old = home / f"{_FILES}.old"
    remove(old)
    with contextlib.suppress(FileNotFoundError):
        (home / _FILES).rename(old)
    remove(old)


def _is_below(name: str, folder: str) -> bool:
    return not folder or name == folder or name.startswith(f"{folder}/")
