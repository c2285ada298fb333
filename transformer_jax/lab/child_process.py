# SPDX-License-Identifier: Apache-2.0
"""Processes that run a module of this package: how they begin, end, and say why they ended."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

_ERRORS = "stderr"


@contextlib.contextmanager
def child_process(
    module: str,
    work: bytes,
    folder: str,
    stdout: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `python -m module` in the block, at whose end it is killed. A module that calls
    `end_with_parent` ends with this process, too.

    Args:
      work: what it reads from its stdin, which stays open.
      folder: where its stderr is kept, for `describe_end`.
      stdout: `subprocess.PIPE`; None: the same file.
      environment: variables besides those of this process.
    """
    path = os.pathsep.join(filter(None, sys.path))
    with (
        (Path(folder) / _ERRORS).open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=stdout or stderr,
            stderr=stderr,
            env={**os.environ, **(environment or {}), "PYTHONPATH": path},
            start_new_session=True,
        ) as process,
    ):
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # stderr says why
                process.stdin.write(work)
                process.stdin.flush()
            yield process
        finally:  # also if the caller is interrupted
            kill(process)
            with contextlib.suppress(BrokenPipeError):  # what it has not read
                process.stdin.close()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a child process and those that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def end_with_parent() -> None:
    """Ends this process, in whatever loop it is, when its parent ends, which holds its stdin."""

    def watch() -> None:
        while os.read(0, 2**16):  # not `sys.stdin`, whose lock the end of Python waits for
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def describe_end(process: subprocess.Popen[bytes], folder: str) -> str:
    """Why a process has ended: the last line that it wrote to stderr."""
    errors = (Path(folder) / _ERRORS).read_text(errors="replace")
    last = (errors.strip() or "it wrote nothing").splitlines()[-1]
    return f"the process ended with status {process.returncode}: {last}"
