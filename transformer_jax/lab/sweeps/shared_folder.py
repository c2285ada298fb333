# SPDX-License-Identifier: Apache-2.0
"""The folder of a sweep, on a disk or in a bucket, which several processes may work on.

A process claims a row by locking its folder; in a bucket, by a lease. The lock of a process that
was killed ends, so that another process takes the row over where it was.
"""

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from transformer_jax.buckets import lease
from transformer_jax.buckets.bucket import Bucket, NotInBucketError, is_address
from transformer_jax.buckets.copies import working_copy_id
from transformer_jax.errors import BusyError
from transformer_jax.runs.workdir import (
    DECISIONS,
    RESULT,
    SWEEP,
    lock_workdir,
    open_for_writing,
    workdir_path,
    workdir_within,
)
from transformer_jax.runtime.files import read_regular, write_atomic


def folder_name(row: str) -> str:
    """Name of a row's folder in the workdir of its sweep."""
    return re.sub(r"[^\w.-]+", "_", row)


class SweepFolder:
    """The folder of a sweep.

    Args:
      workdir: a path or an address.
      writes: a folder on a disk is created and marked; without, the folder is only read.

    Raises:
      UserError: the folder cannot be written, or it holds something else.
    """

    def __init__(self, workdir: str | Path, *, writes: bool = True) -> None:
        self._bucket = Bucket(str(workdir)) if is_address(workdir) else None
        self._folder = Path() if self._bucket else workdir_path(workdir)
        self._seen: dict[str, tuple[lease.LeaseRecord, float]] = {}
        if self._bucket is None and writes:
            with lock_workdir(self._folder, SWEEP, wait=True):
                pass

    def __str__(self) -> str:
        return self._bucket.address if self._bucket else str(self._folder)

    @contextlib.contextmanager
    def claim(self, row: str) -> Iterator[Path]:
        """A row's folder on this machine, which no other process writes while the block runs.

        Raises:
          BusyError: another process trains the row.
        """
        name = folder_name(row)
        with contextlib.ExitStack() as claimed:
            if self._bucket is None:
                folder = workdir_within(self._folder, name)
            else:
                address = f"{self._bucket.address}/{name}"
                self._require_free(address)
                folder = claimed.enter_context(open_for_writing(address)).folder
            claimed.enter_context(lock_workdir(folder, SWEEP))
            yield folder

    def _require_free(self, address: str) -> None:
        """Raises BusyError if another machine has renewed the lease of a row within the time after
        which it is stale. (Entering a lease would wait that long, while other rows are free.)"""
        held = lease.other_holder(Bucket(address), working_copy_id(address))
        if held is None:
            return
        record, since = self._seen.get(address, (None, 0.0))
        if record != held:
            since = time.monotonic()
            self._seen[address] = (held, since)
        if time.monotonic() < since + lease.STALE_SECONDS:
            raise BusyError(f"{address}: {held.told} is training there")

    def result(self, row: str) -> bytes | None:
        """Content of a row's result; None if it is not finished."""
        return self.read(f"{folder_name(row)}/{RESULT}")

    def read(self, name: str) -> bytes | None:
        """Content of a file; None if it does not exist."""
        with contextlib.suppress(FileNotFoundError, NotInBucketError):
            if self._bucket is None:
                return read_regular(self._folder / name)
            return self._bucket.read(name)
        return None

    def entry(self, number: int) -> bytes | None:
        """Content of an entry of the log of decisions; None if there is none."""
        return self.read(f"{DECISIONS}/{number}.json")

    def add_entry(self, number: int, text: str) -> bool:
        """Adds an entry to the log of decisions; of several processes, one succeeds.

        Args:
          number: of the entry, after which all others follow.
          text: the content, which differs between processes.

        Returns:
          False if there is an entry of this number.
        """
        if self._bucket is not None:
            return self._bucket.create(f"{DECISIONS}/{number}.json", text.encode())
        with lock_workdir(self._folder, SWEEP, wait=True):
            path = workdir_within(self._folder, DECISIONS) / f"{number}.json"
            if os.path.lexists(path):
                return False
            path.parent.mkdir(exist_ok=True)
            write_atomic(path, text)
            return True

    def write(self, make: Callable[[Path], None]) -> None:
        """Writes files into the folder: those that `make(folder)` writes. One process at a time
        does so on a disk; in a bucket the last one wins."""
        if self._bucket is None:
            with lock_workdir(self._folder, SWEEP, wait=True):
                make(self._folder)
            return
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder))
            for path in sorted(Path(folder).iterdir()):
                self._bucket.write(path.name, path.read_bytes())
