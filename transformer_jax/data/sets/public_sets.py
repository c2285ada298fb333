"""Named public sets: where their files lie on this machine, and what to download when absent."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transformer_jax.buckets.addresses import is_address
from transformer_jax.buckets.copies import fetched
from transformer_jax.data.sets.download import RemoteFile, download
from transformer_jax.errors import UserError
from transformer_jax.runtime.cache_folder import cache_folder


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
            return fetched(folder)
        return Path(os.path.expanduser(folder)) if folder else _data_root() / self.name


def _data_root() -> Path:
    if root := os.environ.get("TRANSFORMER_JAX_DATA"):
        return Path(os.path.expanduser(root))
    own = cache_folder("data")
    if own is None:
        raise UserError("there is no home to keep data in: set TRANSFORMER_JAX_DATA to a folder")
    return own
