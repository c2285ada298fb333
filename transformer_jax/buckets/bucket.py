"""The files below an address."""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from tqdm import tqdm

from transformer_jax.buckets.addresses import BucketError, reason, require_allowed, telling
from transformer_jax.runtime.files import is_safe_name, path_below

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
