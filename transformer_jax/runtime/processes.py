# SPDX-License-Identifier: Apache-2.0
"""Processes: child processes that end with their parent, and a description of this process."""

import datetime
import os
import socket
import threading
from multiprocessing import reduction
from typing import Any


class Lifeline:
    """Ends child processes when their parent cuts it or is gone, whatever ended the parent.

    It is a pipe to which nothing is written: reading it returns once the parent's end is closed.
    Pickled for a process of `multiprocessing`, it becomes the child's end.
    """

    def __init__(self) -> None:
        self._parent_end: int | None
        self._child_end, self._parent_end = os.pipe()

    def cut(self) -> None:
        """Ends the processes that called `exit_when_cut`. A second call has no effect."""
        if self._parent_end is not None:
            os.close(self._parent_end)
            os.close(self._child_end)
            self._parent_end = None

    def exit_when_cut(self) -> None:
        """Makes this process exit with status 1 when the parent cuts the line or is gone."""
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        os.read(self._child_end, 1)
        os._exit(1)

    def __getstate__(self) -> dict[str, Any]:
        return {"child_end": reduction.DupFd(self._child_end)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._child_end = state["child_end"].detach()
        self._parent_end = None


def describe_process() -> str:
    """Text that identifies this process: its number, its machine and the time in microseconds."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
    return f"process {os.getpid()} on {socket.gethostname()}, since {now}"
