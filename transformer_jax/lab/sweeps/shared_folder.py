# SPDX-License-Identifier: Apache-2.0
"""The folder of a sweep, on a disk or in a bucket, which several processes may work on.

A process claims a row by locking its folder; in a bucket, by a lease. The lock of a process that
was killed ends, so that another process takes the row over where it was.
"""

import contextlib
import logging
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from transformer_jax.buckets import lease
from transformer_jax.buckets.bucket import Bucket, NotInBucketError, is_address
from transformer_jax.buckets.copies import working_copy_id
from transformer_jax.errors import BusyError
from transformer_jax.runs.workdir import (
    RESULT,
    SWEEP,
    lock_workdir,
    open_for_writing,
    workdir_path,
    workdir_within,
)
from transformer_jax.runtime.files import read_regular

_POLL_SECONDS = 2.0  # between looks at rows that other processes train

logger = logging.getLogger(__name__)


def folder_name(row: str) -> str:
    """Name of a row's folder in the workdir of its sweep."""
    return re.sub(r"[^\w.-]+", "_", row)


class SweepFolder:
    """The folder of a sweep.

    Args:
      workdir: a path, where the folder is created and marked, or an address.

    Attributes:
      bucket: None on a disk.
      path: on a disk.

    Raises:
      UserError: the folder cannot be written, or it holds something else.
    """

    def __init__(self, workdir: str | Path) -> None:
        self.bucket = Bucket(str(workdir)) if is_address(workdir) else None
        self.path = Path() if self.bucket else workdir_path(workdir)
        self._has_waited = False
        self._seen: dict[str, tuple[lease.LeaseRecord, float]] = {}
        if self.bucket is None:
            with lock_workdir(self.path, SWEEP, wait=True):
                pass

    def __str__(self) -> str:
        return self.bucket.address if self.bucket else str(self.path)

    @contextlib.contextmanager
    def claim(self, row: str) -> Iterator[Path]:
        """A row's folder on this machine, which no other process writes while the block runs.

        Raises:
          BusyError: another process trains the row.
        """
        name = folder_name(row)
        with contextlib.ExitStack() as claimed:
            if self.bucket is None:
                folder = workdir_within(self.path, name)
            else:
                address = f"{self.bucket.address}/{name}"
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

    def wait_for(self, rows: Sequence[str]) -> None:
        """Waits a little for rows that other processes train."""
        if not self._has_waited:
            logger.info("waiting for other processes, which train %s", ", ".join(rows))
        self._has_waited = True
        time.sleep(_POLL_SECONDS)

    def result(self, row: str) -> bytes | None:
        """Content of a row's result; None if it is not finished."""
        return self.read(f"{folder_name(row)}/{RESULT}")

    def read(self, name: str) -> bytes | None:
        """Content of a file; None if it does not exist."""
        with contextlib.suppress(FileNotFoundError, NotInBucketError):
            if self.bucket is None:
                return read_regular(self.path / name)
            return self.bucket.read(name)
        return None

    def write(self, make: Callable[[Path], None]) -> None:
        """Writes the files that `make(folder)` writes: one process at a time on a disk; in a bucket
        the last one wins."""
        if self.bucket is None:
            with lock_workdir(self.path, SWEEP, wait=True):
                make(self.path)
            return
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder))
            for path in sorted(Path(folder).iterdir()):
                self.bucket.write(path.name, path.read_bytes())
