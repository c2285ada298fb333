"""The folder that a run is written to: its workdir; or, of one at an address, a copy of it."""

import base64
import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from transformer_jax.buckets.addresses import is_address
from transformer_jax.buckets.copies import name_of_copy, working_copy
from transformer_jax.checkpoints.config import CheckpointConfig
from transformer_jax.checkpoints.primary_store import PrimaryCheckpoints
from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.parallel import hosts
from transformer_jax.runs.sole_writer import sole_writer
from transformer_jax.runs.workdir import BUCKET, CHECKPOINTS, CONFIG, METRICS, workdir_path
from transformer_jax.runtime.files import path_below

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where a run is written.

    Attributes:
      folder: of this process.
      shared: whether it is the same folder in all processes of the job; else process 0 alone keeps
        the run, and the others have empty folders of their own.
    """

    folder: Path
    shared: bool

    def checkpoints(self, config: CheckpointConfig) -> Checkpoints:
        """Those of the run."""
        kind = Checkpoints if self.shared else PrimaryCheckpoints
        return kind(self.folder / CHECKPOINTS, config)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """As `sole_writer`, of the folder where the run is kept."""
        with contextlib.ExitStack() as held:
            if self.shared:
                held.enter_context(sole_writer(self.folder))
            else:
                hosts.from_primary(lambda: held.enter_context(sole_writer(self.folder)))
            yield

    def bring(self, name: str) -> None:
        """Gives all processes the files that process 0 has in a folder of the workdir."""
        if self.shared:
            return
        there = hosts.from_primary(lambda: _contents(self.folder, name))
        for path, content in there.items():
            file = path_below(self.folder, path)
            if not hosts.is_primary():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(base64.b64decode(content))


@contextlib.contextmanager
def writable(workdir: str | Path) -> Iterator[Place]:
    """As `workdir_path`, to write to while the block runs: of a workdir at an address, a copy with
    all that is there; what changes in it is brought to the address.

    In a job of many processes the first one brings it. Where all see its copy they use it.

    Raises:
      UserError: as `workdir_path`, or as `copies.working_copy`.
    """
    if not is_address(workdir):
        yield Place(workdir_path(workdir), shared=True)
        return
    with contextlib.ExitStack() as held:

        def opened() -> tuple[str, str]:
            folder = held.enter_context(working_copy(str(workdir), BUCKET))
            for config in folder.rglob(CONFIG):
                _begin_anew_without_checkpoint(config.parent)
            return str(workdir_path(folder)), name_of_copy(str(workdir))

        path, name = hosts.from_primary(opened)
        folder = Path(path)
        shared = all(hosts.gather(name_of_copy(str(workdir)) == name and folder.is_dir()))
        if not shared:
            logger.info(
                "%s: the machines share no copy of it; the first one keeps the run", workdir
            )
        if not (shared or hosts.is_primary()):
            folder = Path(held.enter_context(tempfile.TemporaryDirectory()), folder.name)
            folder.mkdir()
        yield Place(folder, shared)


def _begin_anew_without_checkpoint(copy: Path) -> None:
    """Sets the records aside of a run whose machine was lost before any checkpoint had come to the
    bucket. (On a disk, records without checkpoints mean that these have been lost.)"""
    checkpoints, records = copy / CHECKPOINTS, copy / METRICS
    checkpoints.mkdir(exist_ok=True)  # a bucket has no empty folders
    if records.exists() and not step_folders(checkpoints):
        records.replace(records.with_name(f"{METRICS}.old"))


def _contents(folder: Path, name: str) -> dict[str, str]:
    """The files in `folder/name`, in base64, by their paths in `folder`."""
    return {
        path.relative_to(folder).as_posix(): base64.b64encode(path.read_bytes()).decode()
        for path in (folder / name).rglob("*")
        if path.is_file()
    }
