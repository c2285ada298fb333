# SPDX-License-Identifier: Apache-2.0
"""Files at an address such as "s3://bucket/folder", read and written through fsspec.

An address in a config may come from a stranger: `require_allowed` limits which protocols are used.
"""

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

from transformer_jax.errors import UserError, escape_controls, install_hint, reason_of
from transformer_jax.runtime.files import atomic_writer, is_safe_name, path_below

logger = logging.getLogger(__name__)

ALLOW_VARIABLE = "TRANSFORMER_JAX_ALLOW_ADDRESSES"
"""Environment variable with more protocols that addresses may have, such as "file,http"."""
PROTOCOLS = ("s3", "gs", "gcs")
"""Protocols that an address may have: others could reach any server or file of this machine."""
PATIENCE_SECONDS = 60.0
"""Time for which a request that fails is repeated."""

_ADDRESS = re.compile(r"([A-Za-z][\w+.-]*)://")
_PATH_OF_ADDRESS = re.compile(r"(s3|gs|gcs):/[^/]")  # `Path` drops one slash of an address
_EXTRAS = {"s3": "s3", "gs": "gcs", "gcs": "gcs"}
"""Protocol -> the extra of pyproject.toml with its client."""
_FIRST_PAUSE = 0.2  # seconds between two tries, doubled after each
_LONGEST_PAUSE = 8.0
_PROGRESS_BAR_DELAY = 2  # seconds
_PARALLEL_TRANSFERS = 8
_SMALL = 8 << 20  # bytes: a smaller file is written in one request
_FINAL_ERRORS = (FileNotFoundError, FileExistsError, PermissionError, ImportError, ValueError)
_FINAL_STATUSES = (400, 401, 403, 404, 412)  # of HTTP
# Each client of fsspec lists others: S3, Google, file.
_VERSION_KEYS = ("ETag", "etag", "generation", "mtime", "LastModified", "created")


class BucketError(UserError):
    """Reading or writing at an address failed."""


class NotInBucketError(BucketError):
    """A file or a bucket does not exist."""


def is_address(path: str | Path) -> bool:
    """Returns True if a path is an address, such as "s3://...".

    Raises:
      UserError: the address is not allowed (`require_allowed`), or was converted to a `Path`.
    """
    address = str(path)
    if _PATH_OF_ADDRESS.match(address):
        raise UserError(f"{path} was an address: give it as text, since Path drops one of its //")
    if not ("://" in address and (_ADDRESS.match(address) or "::" in address)):
        return False
    require_allowed(address)
    return True


def require_allowed(address: str, also: Collection[str] = ()) -> None:
    """Raises UserError unless an address may be used.

    Its protocol must be in `PROTOCOLS`, in `also`, or in the environment variable
    TRANSFORMER_JAX_ALLOW_ADDRESSES. Chains ("zip://x::http://...") are always rejected: through
    them an allowed protocol could reach any other.
    """
    if "::" in address:
        raise UserError(f"{address!r} has '::', which chains addresses; give a single address")
    match = _ADDRESS.match(address)
    allowed = {*PROTOCOLS, *also, *os.environ.get(ALLOW_VARIABLE, "").replace(" ", "").split(",")}
    if not match or match[1] not in allowed:
        usable = ", ".join(f"{protocol}://" for protocol in (*PROTOCOLS, *also))
        more = f"; to allow it, set {ALLOW_VARIABLE}={match[1]} in the environment" if match else ""
        raise UserError(f"{address!r} is no address that may be used ({usable} are){more}")


@contextlib.contextmanager
def as_bucket_errors(failure: str, address: str) -> Iterator[None]:
    """Turns errors of the block, which come from many libraries, into `BucketError`s of one line.

    The line begins with `failure`, such as "cannot read", and the address.
    """
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise NotInBucketError(f"{failure} {address}: there is no such file or bucket") from error
    except ImportError as error:
        protocol = address.partition("://")[0]
        extra = _EXTRAS.get(protocol)
        hint = install_hint(extra) if extra else "install it"
        raise BucketError(
            f"{failure} {address}: {protocol}:// needs a package ({error}); {hint}"
        ) from error
    except Exception as error:
        raise BucketError(f"{failure} {address}: {reason_of(error)}") from error


@dataclass(frozen=True)
class Entry:
    """A file in the listing of a bucket.

    Attributes:
      size: bytes.
      version: changes when the file is written again.
    """

    size: int
    version: str


class Bucket:
    """The files below an address, by their names relative to it.

    Listings and contents are not cached. Requests that fail are repeated for `PATIENCE_SECONDS`.

    Args:
      address: of a folder, which need not exist.

    Raises:
      UserError: the address is not allowed (`require_allowed`).
      BucketError: the package for its protocol is missing. From all methods: the request failed.
      NotInBucketError: from all methods: there is no such file or bucket.
    """

    def __init__(self, address: str):
        require_allowed(address)
        self.address = address.rstrip("/")
        with as_bucket_errors("cannot reach", self.address):
            self._system, root = fsspec.core.url_to_fs(
                self.address, use_listings_cache=False, skip_instance_cache=True
            )
        self._system.auto_mkdir = True  # only file:// needs its folders made
        self._root = root.rstrip("/")

    def entries(self, folder: str = "") -> dict[str, Entry]:
        """The files in a folder and its subfolders, by name; none if it does not exist.

        Names that lead out of the folder are left out, with a warning: strangers may have filled
        the bucket.
        """

        def list_files() -> dict[str, Entry]:
            self._system.invalidate_cache()
            try:
                listed = self._system.find(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
            infos = {path.removeprefix(f"{self._root}/"): info for path, info in listed.items()}
            # Consoles of buckets make empty objects for folders.
            names = {name for name in infos if not name.endswith("/") and name != self._root}
            unsafe = {name for name in names if not is_safe_name(name)}
            if unsafe:
                message = "%s: skipping %d files whose names could lead out of the folder, as %r"
                logger.warning(message, self.address, len(unsafe), min(unsafe))
            return {
                name: Entry(int(infos[name].get("size") or 0), _version(infos[name]))
                for name in names - unsafe
            }

        return self._retry("cannot list", folder, list_files)

    def read(self, name: str) -> bytes:
        """The content of a file."""
        return self._retry("cannot read", name, lambda: self._system.cat_file(self._path(name)))

    def write(self, name: str, content: bytes) -> None:
        """Writes a whole file, in place of an older one if there is one."""
        path = self._path(name)
        options = {}
        if "gs" in self._system.protocol and content and _is_ambiguous(content):
            options["chunksize"] = len(content)  # gcsfs then sends no multipart body
        self._retry("cannot write", name, lambda: self._system.pipe_file(path, content, **options))

    def create(self, name: str, content: bytes) -> bool:
        """Writes a file unless it exists; returns True if this call wrote it.

        Of several concurrent calls, one succeeds. Their contents must differ.
        """

        def create_file() -> bool:
            try:
                self._system.pipe_file(self._path(name), content, mode="create")
            except Exception as error:  # 412: precondition failed
                if not isinstance(error, FileExistsError) and _http_status(error) != 412:
                    raise
                return False
            return True

        # If the answer to a first try was lost, the second try finds the file of the first.
        return self._retry("cannot write", name, create_file) or self.read(name) == content

    def upload(self, source: Path, name: str) -> None:
        """Writes a file from one on disk, which must not change meanwhile."""
        if source.stat().st_size < _SMALL:
            return self.write(name, source.read_bytes())
        path = self._path(name)
        self._retry("cannot write", name, lambda: self._system.put_file(str(source), path))

    def download(self, name: str, target: Path) -> None:
        """Writes a file to disk, whole or not at all."""
        target.parent.mkdir(parents=True, exist_ok=True)
        path = self._path(name)
        with atomic_writer(target) as file:
            self._retry("cannot read", name, lambda: self._system.get_file(path, file.name))

    def delete(self, name: str) -> None:
        """Deletes a file if it exists."""
        with contextlib.suppress(NotInBucketError):
            self._retry("cannot delete", name, lambda: self._system.rm_file(self._path(name)))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _retry[Result](self, failure: str, name: str, request: Callable[[], Result]) -> Result:
        """Returns the result of a request, which is repeated if its failure may be temporary."""
        address = f"{self.address}/{name}" if name else self.address
        deadline = time.monotonic() + PATIENCE_SECONDS
        pause = _FIRST_PAUSE
        with as_bucket_errors(failure, address):
            while True:
                try:
                    return request()
                except Exception as error:
                    if _is_final(error) or time.monotonic() + pause > deadline:
                        raise
                    if pause == _FIRST_PAUSE:
                        message = reason_of(error)
                        logger.info("%s %s yet: %s; trying again", failure, address, message)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)


def download_files(
    bucket: Bucket,
    folder: Path,
    names: Collection[str],
    is_last: Callable[[str], bool] = lambda name: False,
) -> None:
    """Downloads files to a folder; those for which `is_last` is True after all others."""
    bar = tqdm(
        total=len(names),
        desc=escape_controls(bucket.address),
        unit="file",
        delay=_PROGRESS_BAR_DELAY,
        disable=None,
    )

    def download(name: str) -> None:
        bucket.download(name, path_below(folder, name))
        bar.update()

    with bar:
        for last in (False, True):
            run_in_parallel(download, sorted(name for name in names if is_last(name) == last))


def run_in_parallel[Item](function: Callable[[Item], object], items: Iterable[Item]) -> None:
    """Calls a function on each item in threads; raises the first error after all have ended."""
    with ThreadPoolExecutor(_PARALLEL_TRANSFERS, thread_name_prefix="bucket") as pool:
        futures = [pool.submit(function, item) for item in items]
    for future in futures:
        future.result()


def _is_ambiguous(content: bytes) -> bool:
    """Returns True if gcsfs would send a content that the server cuts short.

    gcsfs sends a small file in a multipart body between lines of "--==0==". The file must not
    contain such a line. A final "\\r" would be read as part of the line end after it.
    """
    return content.endswith(b"\r") or b"--==0==" in content


def _version(info: dict[str, Any]) -> str:
    return next((str(info[key]) for key in _VERSION_KEYS if info.get(key)), "")


def _http_status(error: Exception) -> int | None:
    """The HTTP status in an error of a client library; None if it has none."""
    status = getattr(error, "code", None) or getattr(error, "status", None)
    return int(str(status)) if str(status).isdecimal() else None


def _is_final(error: Exception) -> bool:
    """Returns True if another try cannot succeed, as without credentials."""
    refused = _http_status(error) in _FINAL_STATUSES or str(error).startswith("Forbidden")
    is_final = isinstance(error, (BucketError, *_FINAL_ERRORS))
    return refused or is_final or "Credentials" in type(error).__name__
