"""The files below an address."""

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from tqdm import tqdm

from transformer_jax.errors import UserError
from transformer_jax.runtime.files import is_safe_name, path_below

# FOLDED buckets.addresses: Addresses of files elsewhere, and what goes wrong with them in one
# line.


ALLOW = "TRANSFORMER_JAX_ALLOW_ADDRESSES"
"""Environment variable: more protocols that addresses may have, such as "file,http"."""
PROTOCOLS = ("s3", "gs", "gcs")
"""Protocols that an address may have. A config may come from strangers: an address in it must not
reach any server, or any file of this machine."""
_ADDRESS = re.compile(r"([A-Za-z][\w+.-]*)://")
_FOLDED = re.compile(r"(s3|gs|gcs):/[^/]")  # what `Path` makes of an address


class BucketError(UserError):
    """What lies at an address cannot be read or written now."""


class Missing(BucketError):
    """There is no such file, or no such bucket."""


def is_address(path: str | Path) -> bool:
    """Returns True if a path names something elsewhere, such as "s3://...".

    Raises:
      UserError: it was one, before it was made a `Path`; or an address that is not allowed
        (`require_allowed`).
    """
    if isinstance(path, Path) and _FOLDED.match(str(path)):
        raise UserError(f"{path} was an address: give it as text, since Path drops one of its //")
    if not isinstance(path, str) or not ("://" in path and (_ADDRESS.match(path) or "::" in path)):
        return False
    require_allowed(path)
    return True


def require_allowed(address: str, also: Collection[str] = ()) -> None:
    """Raises UserError unless an address may be used.

    Its protocol must be one of `PROTOCOLS`, of `also`, or of the environment variable
    TRANSFORMER_JAX_ALLOW_ADDRESSES. Chains ("zip://x::http://...") are always refused: a protocol
    that is allowed could reach through them to any other.
    """
    if "::" in address:
        raise UserError(f"{address!r} has '::', which chains addresses; give a plain one")
    found = _ADDRESS.match(address)
    allowed = {*PROTOCOLS, *also, *os.environ.get(ALLOW, "").replace(" ", "").split(",")}
    if not found or found[1] not in allowed:
        known = ", ".join(f"{one}://" for one in (*PROTOCOLS, *also))
        more = f"; to allow it, set {ALLOW}={found[1]} in the environment" if found else ""
        raise UserError(f"{address!r} is no address that may be used ({known} are){more}")


@contextlib.contextmanager
def telling(what: str, address: str) -> Iterator[None]:
    """Makes one line of whatever goes wrong: the errors of fsspec are of many libraries.

    Args:
      what: "cannot read", say.
      address: what the block reads or writes.
    """
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise Missing(f"{what} {address}: there is no such file or bucket") from error
    except ImportError as error:
        protocol = address.partition("://")[0]
        told = f"{what} {address}: {protocol}:// needs a package of its own ({error})"
        raise BucketError(f"{told}; pip install it") from error
    except Exception as error:
        raise BucketError(f"{what} {address}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """The first line of an error, in a moderate length."""
    return (str(error).strip() or repr(error)).splitlines()[0][:300]


logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0
"""How long a request is repeated that fails and may yet succeed."""
_PAUSES = (0.2, 8.0)  # seconds between two tries, at first and at most
_BAR_SECONDS = 2  # until it is shown
_AT_ONCE = 8  # transfers
_SMALL = 8 << 20  # bytes: such a file goes in one request
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, ImportError, ValueError)
_REFUSED = (400, 401, 403, 404, 412)  # HTTP's statuses that stay as they are
_VERSIONS = ("ETag", "etag", "generation", "mtime", "LastModified", "created")


@dataclass(frozen=True)
class Entry:
    """A file as a bucket lists it: its bytes, and what differs once it is written anew."""

    size: int
    version: str


class Bucket:
    """The files below an address; their names are what follows it, with "/" between folders.

    Nothing that was listed or read is remembered. Requests that fail for a while are repeated.

    Args:
      address: of a folder, which need not exist.

    Raises:
      UserError: the address is not allowed (`addresses.require_allowed`).
      BucketError: the package for its protocol is missing. From all methods: the request failed,
        to the end of the patience; Missing where there is no such file or bucket.
    """

    def __init__(self, address: str):
        require_allowed(address)
        self.address = address.rstrip("/")
        self._has_warned = False
        with telling("cannot reach", self.address):
            self._system, root = fsspec.core.url_to_fs(
                self.address, use_listings_cache=False, skip_instance_cache=True
            )
        self._system.auto_mkdir = True  # of file:// alone, where folders must be made
        self._root = root.rstrip("/")

    def entries(self, folder: str = "") -> dict[str, Entry]:
        """The files in a folder and its subfolders, by their names; none where it does not exist.

        Names that lead out of the folder are left out, with a warning: a bucket may be filled by
        strangers.

        Args:
          folder: its name; "": all.
        """

        def found() -> dict[str, Entry]:
            self._system.invalidate_cache()
            try:
                listed = self._system.find(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
            names = {path.removeprefix(f"{self._root}/"): one for path, one in listed.items()}
            files = {n for n in names if not n.endswith("/") and n != self._root}
            safe = {name for name in files if is_safe_name(name)}
            self._warn_of(files - safe)
            return {
                name: Entry(int(one.get("size") or 0), _version(one))
                for name, one in names.items()
                if name in safe
            }

        return self._patiently("cannot list", folder, found)

    def read(self, name: str) -> bytes:
        """The content of a file."""
        return self._patiently("cannot read", name, lambda: self._system.cat_file(self._path(name)))

    def write(self, name: str, content: bytes) -> None:
        """Writes a file, or writes it anew; never a part of it."""
        path, options = self._path(name), {}
        if "gs" in self._system.protocol and content and _is_ambiguous(content):
            options["chunksize"] = len(content)  # so gcsfs sends it in a request of its own
        self._patiently(
            "cannot write", name, lambda: self._system.pipe_file(path, content, **options)
        )

    def create(self, name: str, content: bytes) -> bool:
        """Writes a file that is not there; of several who do so at once, one succeeds.

        Args:
          name: of the file.
          content: alike in no two calls.

        Returns:
          Whether this call has written it.
        """

        def created() -> bool:
            try:
                self._system.pipe_file(self._path(name), content, mode="create")
            except FileExistsError:
                return False
            except Exception as error:
                if _status(error) != 412:  # HTTP: its condition does not hold
                    raise
                return False
            return True

        # Where the answer to a first try was lost, a second finds the file, which is this one's.
        return self._patiently("cannot write", name, created) or self.read(name) == content

    def upload(self, source: Path, name: str) -> None:
        """Writes a file with the content of one on disk, which does not change meanwhile."""
        if source.stat().st_size < _SMALL:
            return self.write(name, source.read_bytes())
        path = self._path(name)
        self._patiently("cannot write", name, lambda: self._system.put_file(str(source), path))

    def download(self, name: str, target: Path) -> None:
        """Writes a file on disk, which is whole or not there."""
        partial = target.with_name(target.name + ".partial")
        target.parent.mkdir(parents=True, exist_ok=True)
        path = self._path(name)
        self._patiently("cannot read", name, lambda: self._system.get_file(path, str(partial)))
        partial.replace(target)

    def delete(self, name: str) -> None:
        """Deletes a file; nothing where it is not there."""

        def deleted() -> None:
            try:
                self._system.rm_file(self._path(name))
            except FileNotFoundError:
                return

        self._patiently("cannot delete", name, deleted)

    def _warn_of(self, names: Collection[str]) -> None:
        if names and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s: %d files are left out, whose names could lead out of a folder; the first: %r",
                *(self.address, len(names), min(names)),
            )

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _patiently[Result](self, what: str, name: str, request: Callable[[], Result]) -> Result:
        address = f"{self.address}/{name}" if name else self.address
        until, pause = time.monotonic() + PATIENCE_SECONDS, _PAUSES[0]
        with telling(what, address):
            while True:
                try:
                    return request()
                except _FINAL:
                    raise
                except Exception as error:
                    if _is_final(error) or time.monotonic() + pause > until:
                        raise
                    if pause == _PAUSES[0]:
                        logger.info("%s %s yet: %s; tried again", what, address, reason(error))
                time.sleep(pause)
                pause = min(2 * pause, _PAUSES[1])
        raise AssertionError("not reached")


def bring(
    bucket: Bucket,
    folder: Path,
    names: Collection[str],
    is_last: Callable[[str], bool] = lambda name: False,
) -> None:
    """Downloads files to a folder, those that are to be there last after all others."""
    bar = tqdm(
        *(), desc=bucket.address, total=len(names), unit="file", delay=_BAR_SECONDS, disable=None
    )

    def one(name: str) -> None:
        bucket.download(name, path_below(folder, name))
        bar.update()

    with bar:
        for last in (False, True):
            at_once(one, sorted(name for name in names if is_last(name) == last))


def at_once[Item](do: Callable[[Item], object], items: Iterable[Item]) -> None:
    """Does it for each item, some at a time; raises the first error once all have ended."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="bucket") as pool:
        started = [pool.submit(do, item) for item in items]
    for one in started:
        one.result()


def _is_ambiguous(content: bytes) -> bool:
    """Whether a server would cut this content short. gcsfs sends a small file in a multipart body,
    between lines of "--==0==": the file must not hold such a line, nor end in a "\\r", which the
    server would take for a part of the line end behind it."""
    return content.endswith(b"\r") or b"--==0==" in content


def _version(listed: dict[str, Any]) -> str:
    return next((str(listed[key]) for key in _VERSIONS if listed.get(key)), "")


def _status(error: Exception) -> int | None:
    """The status of HTTP that an error of a client tells."""
    told = getattr(error, "code", None) or getattr(error, "status", None)
    return int(str(told)) if str(told).isdecimal() else None


def _is_final(error: Exception) -> bool:
    """Whether there is no hope in another try; without credentials, there is none."""
    refused = _status(error) in _REFUSED or str(error).startswith("Forbidden")
    return refused or "Credentials" in type(error).__name__ or isinstance(error, BucketError)


# FOLDED buckets.layout: What of a folder is whole or not there, and what is passing.


@dataclass(frozen=True)
class MirrorLayout:
    """What a mirror must know of the files that it brings to a bucket, by their names.

    Attributes:
      unit: matches the beginning of a name up to the folder that is whole or not there, such as
        that of a checkpoint; names that it does not match stand for themselves.
      seal: the file of such a folder that is written last and deleted first.
      listed: the files that a seal tells of, by their names in its folder.
      passing: matches names that are on their way to another, and stay where they are.
      damage: what is wrong with such a folder on disk; None where it is as it was written.
    """

    unit: re.Pattern[str]
    seal: str
    listed: Callable[[Path], Collection[str]]
    passing: re.Pattern[str]
    damage: Callable[[Path], str | None]

    def unit_of(self, name: str) -> str | None:
        """The unit that a file belongs to."""
        found = self.unit.match(name)
        return found[0] if found else None

    def seal_of(self, unit: str) -> str:
        """The name of a unit's seal."""
        return f"{unit}/{self.seal}"

    def is_seal(self, name: str) -> bool:
        """Whether a file is the seal of a unit."""
        unit = self.unit_of(name)
        return unit is not None and name == self.seal_of(unit)

    def settled(self, names: Iterable[str]) -> set[str]:
        """Those that are neither passing nor in a unit without its seal."""
        names = {name for name in names if not self.passing.search(name)}
        units = {name: self.unit_of(name) for name in names}
        return {name for name, unit in units.items() if not unit or self.seal_of(unit) in names}
