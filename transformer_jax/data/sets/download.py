"""Downloads files whose content is known beforehand: pinned by size and SHA-256."""

import hashlib
import logging
import os
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO

from tqdm import tqdm

from transformer_jax.buckets.bucket import is_address
from transformer_jax.buckets.copies import fetch_folder
from transformer_jax.errors import UserError
from transformer_jax.runtime.files import cache_folder

_CHUNK_BYTES = 1 << 16
_TIMEOUT_SECONDS = 30

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteFile:
    """A public file and what it must contain.

    Attributes:
      url: where it is.
      size: its length in bytes; not one byte more is stored.
      sha256: its SHA-256 in hexadecimal.
      stored_as: the name to store it under; None: the last component of `url`.
    """

    url: str
    size: int
    sha256: str
    stored_as: str | None = None

    @property
    def name(self) -> str:
        return self.stored_as or self.url.rsplit("/", 1)[1]


def download(remote: RemoteFile, folder: Path) -> Path:
    """Brings `remote` into `folder` and returns its path there.

    The file gets its name in one atomic step once it is whole and verified, so that processes may
    download it at the same time. Missing folders are made for their owner alone (0700), as the XDG
    base directory specification asks for caches.

    Raises:
      UserError: no network, a wrong size or hash, or a folder that cannot be written.
    """
    path = folder / remote.name
    logger.info("downloading %s to %s", remote.url, folder)
    try:
        _make_private(folder)
        with tempfile.NamedTemporaryFile(dir=folder, delete_on_close=False) as partial:
            with urllib.request.urlopen(remote.url, timeout=_TIMEOUT_SECONDS) as response:
                _copy_verified(response, partial, remote)
            partial.close()
            os.replace(partial.name, path)
    except (OSError, HTTPException) as error:
        raise UserError(
            f"cannot download {remote.url} to {folder} ({error}): set data.dir to a folder that "
            "has the files of the set, or TRANSFORMER_JAX_DATA to the folder above it"
        ) from error
    return path


def _make_private(folder: Path) -> None:
    for missing in reversed([folder, *folder.parents]):
        missing.mkdir(mode=0o700, exist_ok=True)


def _copy_verified(response: HTTPResponse, file: IO[bytes], remote: RemoteFile) -> None:
    """Copies the body to `file`.

    Raises:
      OSError: it is not the file that is pinned.
    """
    digest, received = hashlib.sha256(), 0
    with tqdm(desc=remote.name, total=remote.size, unit="B", unit_scale=True, disable=None) as bar:
        while chunk := response.read(_CHUNK_BYTES):
            received += len(chunk)
            if received > remote.size:
                raise OSError(f"it is longer than the {remote.size} bytes expected")
            digest.update(chunk)
            file.write(chunk)
            bar.update(len(chunk))
    if received < remote.size:
        raise OSError(f"it broke off after {received} of {remote.size} bytes")
    if digest.hexdigest() != remote.sha256:
        raise OSError(f"its SHA-256 is {digest.hexdigest()}, not {remote.sha256}")


# FOLDED data.sets.public_sets: Named public sets: where their files lie on this machine, and what
# to download when absent.


@dataclass(frozen=True)
class PublicSet:
    """The files of one public set.

    Attributes:
      name: also the name of its folder below the data root.
      files: plain file name (as in train.en) -> the file to download for it.
      source: where people get what is not downloaded from here.
    """

    name: str
    files: Mapping[str, RemoteFile]
    source: str = ""

    def path(self, file_name: str, folder: str | None = None) -> str:
        """The path of a file of the set, as it is or with .gz behind its name.

        Args:
          file_name: a file of the set.
          folder: where the user keeps the set: files there are taken as they are. None: the
            set's folder below the data root, downloaded there when absent.

        Raises:
          UserError: `folder` does not have the file, or it cannot be downloaded.
        """
        if found := self.find(file_name, folder):
            return found
        home = self.home(folder)
        if folder or file_name not in self.files:
            otherwise = self.source or "leave it unset to have them downloaded"
            raise UserError(
                f"{home} has neither {file_name} nor {file_name}.gz: set data.dir to the folder "
                f"of the files of {self.name} ({otherwise})"
            )
        return str(download(self.files[file_name], home))

    def find(self, file_name: str, folder: str | None = None) -> str | None:
        """As `path`, of a file that is on this machine; None where it is not."""
        home = self.home(folder)
        for path in (home / file_name, home / f"{file_name}.gz"):
            if os.path.isfile(path):
                return str(path)
        return None

    def home(self, folder: str | None = None) -> Path:
        """Where the set's files lie: `folder`, or a copy of it where it is an address, or the set's
        own below the data root."""
        if folder and is_address(folder):
            return fetch_folder(folder)
        return Path(os.path.expanduser(folder)) if folder else _data_root() / self.name


def _data_root() -> Path:
    if root := os.environ.get("TRANSFORMER_JAX_DATA"):
        return Path(os.path.expanduser(root))
    own = cache_folder("data")
    if own is None:
        raise UserError("there is no home to keep data in: set TRANSFORMER_JAX_DATA to a folder")
    return own
