# SPDX-License-Identifier: Apache-2.0
"""Public data sets: where their files are, and downloads pinned by size and SHA-256."""

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from transformer_jax.buckets.copies import fetch_folder
from transformer_jax.errors import UserError
from transformer_jax.runtime.files import cache_folder

_TIMEOUT_SECONDS = 30

logger = logging.getLogger(__name__)


_downloads = ContextVar("downloads", default=True)


@contextlib.contextmanager
def without_downloads() -> Iterator[None]:
    """Context: a file that is missing is a UserError."""
    token = _downloads.set(False)
    try:
        yield
    finally:
        _downloads.reset(token)


class RemoteFile(NamedTuple):
    """A file to download, with its expected content.

    Attributes:
      url: URL of the file.
      size: size in bytes.
      sha256: SHA-256 in hexadecimal.
    """

    url: str
    size: int
    sha256: str


def download(remote: RemoteFile, path: Path) -> None:
    """Downloads a file.

    The file is verified and then renamed in one atomic step, so several processes may download it
    at the same time. Missing folders are created with mode 0700, as the XDG base directory
    specification demands of caches.

    Raises:
      UserError: no network, a wrong size or hash, or a folder that cannot be written.
    """
    folder = path.parent
    if not _downloads.get():
        raise UserError(f"{path} is not on this machine")
    logger.info("downloading %s to %s", remote.url, folder)
    try:
        for missing in reversed([folder, *folder.parents]):  # `mkdir(parents=True)` ignores modes
            missing.mkdir(mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete_on_close=False) as partial:
            with urllib.request.urlopen(remote.url, timeout=_TIMEOUT_SECONDS) as response:
                _copy_verified(response, partial, remote)
            partial.close()
            os.replace(partial.name, path)
    except (OSError, HTTPException) as error:
        raise UserError(
            f"cannot download {remote.url} to {folder} ({error}): set data.dir to a folder "
            "with the files of the set, or TRANSFORMER_JAX_DATA to the folder above it"
        ) from error


def _copy_verified(response: HTTPResponse, file: Any, remote: RemoteFile) -> None:
    """Copies the body of a response to `file`.

    Raises:
      OSError: the size or the hash is not that of `remote`.
    """
    name = remote.url.rpartition("/")[2]
    with tqdm.wrapattr(response, "read", total=remote.size, desc=name, disable=None) as body:
        shutil.copyfileobj(body, file)
    received = file.tell()
    if received < remote.size:
        raise OSError(f"it broke off after {received} of {remote.size} bytes")
    file.seek(0)
    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != remote.sha256:
        raise OSError(f"its SHA-256 is {sha256}, not {remote.sha256}")


@dataclass(frozen=True)
class PublicSet:
    """Files of a public data set.

    Attributes:
      name: name of the set, and of its folder below the data root.
      files: file name without .gz (such as train.en) -> the file to download.
      source: where users get files that are not in `files`, for messages.
    """

    name: str
    files: Mapping[str, RemoteFile] = field(default_factory=dict)
    source: str = ""

    def path(self, file_name: str, folder: str | None = None) -> str:
        """Path of a file of the set, plain or .gz; downloads it if it is missing.

        Args:
          file_name: name of the file, without .gz.
          folder: the user's folder of the set, whose files are not verified. None: the set's folder
            below the data root, to which missing files are downloaded.

        Raises:
          UserError: `folder` does not have the file, or it cannot be downloaded.
        """
        path = self.find(file_name, folder)
        if path is not None:
            return path
        local = self.local_folder(folder)
        if folder or file_name not in self.files:
            otherwise = self.source or "leave it unset to download them"
            raise UserError(
                f"{local} has neither {file_name} nor {file_name}.gz: set data.dir to the folder "
                f"of the files of {self.name} ({otherwise})"
            )
        remote = self.files[file_name]
        target = local / (f"{file_name}.gz" if remote.url.endswith(".gz") else file_name)
        download(remote, target)
        return str(target)

    def find(self, file_name: str, folder: str | None = None) -> str | None:
        """Path of a file that is on this machine, plain or .gz; None if it is missing."""
        local = self.local_folder(folder)
        for path in (local / file_name, local / f"{file_name}.gz"):
            if os.path.isfile(path):
                return str(path)
        return None

    def local_folder(self, folder: str | None = None) -> Path:
        """Folder of the set's files: `folder` (for an address, its local copy), or by default the
        set's folder below the data root."""
        return fetch_folder(os.path.expanduser(folder)) if folder else _data_root() / self.name


def _data_root() -> Path:
    root = os.environ.get("TRANSFORMER_JAX_DATA")
    folder = Path(os.path.expanduser(root)) if root else cache_folder("data")
    if folder is None:
        raise UserError("there is no home folder to store data in: set TRANSFORMER_JAX_DATA")
    return folder
