"""Named public sets: where their files lie on this machine, and what to download when absent."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transformer_jax.data.download import RemoteFile, download
from transformer_jax.errors import UserError


@dataclass(frozen=True)
class PublicSet:
    """The files of one public set.

    Attributes:
      name: also the name of its folder below the data root.
      files: plain file name (as in train.en) -> the file to download for it.
    """

    name: str
    files: Mapping[str, RemoteFile]

    def path(self, file_name: str, folder: str | None = None) -> str:
        """The path of a file of the set, as it is or with .gz behind its name.

        Args:
          file_name: a key of `files`.
          folder: where the user keeps the set: files there are taken as they are. None: the
            set's folder below the data root, downloaded there when absent.

        Raises:
          UserError: `folder` does not have the file, or it cannot be downloaded.
        """
        home = Path(os.path.expanduser(folder)) if folder else _data_root() / self.name
        for path in (home / file_name, home / f"{file_name}.gz"):
            if os.path.isfile(path):
                return str(path)
        if folder:
            raise UserError(
                f"{home} has neither {file_name} nor {file_name}.gz: set data.dir to the folder "
                f"of the files of {self.name}, or leave it unset to have them downloaded"
            )
        return str(download(self.files[file_name], home))


def _data_root() -> Path:
    if root := os.environ.get("TRANSFORMER_JAX_DATA"):
        return Path(os.path.expanduser(root))
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(cache)) / "transformer_jax" / "data"
