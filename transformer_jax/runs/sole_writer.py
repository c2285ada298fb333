"""A workdir is written by one process, or one job, at a time."""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts
from transformer_jax.parallel.agreement import Statement
from transformer_jax.runs.workdir import RUN, Kind, require_own
from transformer_jax.runtime import this_process
from transformer_jax.runtime.files import SETTINGS_BYTES, open_to_append, read_regular

_SECONDS_TO_SEE = 10  # a file that another machine has written

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def sole_writer(workdir: Path, kind: Kind = RUN) -> Iterator[None]:
    """Locks a workdir, or the folder of another kind, which is made and marked if absent; the lock
    ends with this process at the latest.

    Of a job's processes the first one locks it for all.

    Raises:
      UserError: another process trains there (the message says which), or the workdir cannot be
        written, or it holds files of others (`workdir.require_own`).
    """
    with contextlib.ExitStack() as held:
        told = hosts.from_primary(lambda: _lock(workdir, kind, held))
        hosts.in_agreement(lambda: (None, _seen(workdir / kind.mark, told)))
        yield


def _seen(mark: Path, told: str) -> Statement:
    """What a mark says, in this process as in process 0, which has written it.

    Raises:
      UserError: it says something else here.
    """
    deadline = time.monotonic() + _SECONDS_TO_SEE
    while told:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if read_regular(mark, SETTINGS_BYTES).decode() == told:
                break
        if time.monotonic() > deadline:
            raise UserError(
                f"{mark.parent} is not the folder that process 0 writes; all processes of a job "
                "must share the --workdir"
            )
        time.sleep(0.1)
    return {"mark of the workdir": told}


def _lock(workdir: Path, kind: Kind, held: contextlib.ExitStack) -> str:
    """Marks and locks a folder; returns what its mark says, empty where it cannot be locked."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        require_own(workdir, kind)
        file = held.enter_context(open_to_append(workdir / kind.mark))
    except OSError as error:
        raise UserError(f"cannot write to {error.filename or workdir}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        raise UserError(
            f"{workdir}: {file.read().strip() or 'another process'} is training there; "
            "wait for it, or choose another --workdir"
        ) from error
    except OSError as error:  # a file system without locks
        logger.warning("%s cannot be locked (%s); do not start two runs there", workdir, error)
        return ""
    told = f"{this_process.described()}\n"
    file.truncate(0)
    file.write(told)
    file.flush()
    os.fsync(file.fileno())
    return told
