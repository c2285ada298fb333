"""Processes that end with the one that started them."""

import datetime
import os
import socket
import threading
from multiprocessing import reduction
from typing import Any


class Lifeline:
    """A pipe that nothing is written to: where its one end is closed, those at the other notice.

    Pickled for processes of `multiprocessing`, it is their end. Theirs notice at once when the
    process that made it cuts it, or is no more, whatever ended that.
    """

    def __init__(self) -> None:
        self._ours: int | None
        self._theirs, self._ours = os.pipe()

    def cut(self) -> None:
        """Ends the processes that hang on; again, nothing."""
        if self._ours is not None:
            os.close(self._ours)
            os.close(self._theirs)
            self._ours = None

    def hang_on(self) -> None:
        """From now on this process ends, with status 1, when the other cuts the line or is gone."""
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        os.read(self._theirs, 1)
        os._exit(1)

    def __getstate__(self) -> dict[str, Any]:
        return {"theirs": reduction.DupFd(self._theirs)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._theirs, self._ours = state["theirs"].detach(), None


# FOLDED runtime.this_process: Who writes somewhere, for the others who find it taken.


def describe_process() -> str:
    """This process, its machine and the time now, to the microsecond: no two are alike."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
    return f"process {os.getpid()} on {socket.gethostname()}, since {now}"
