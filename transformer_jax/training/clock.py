"""Where the time of a training goes."""

import contextlib
import time
from collections.abc import Iterator


class Clock:
    """Runs from the moment it is made; what it is not told of counts as steps."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._spent: dict[str, float] = {}

    @contextlib.contextmanager
    def on(self, what: str) -> Iterator[None]:
        """What runs in this context is not steps."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent[what] = self._spent.get(what, 0.0) + time.perf_counter() - start

    def had(self, what: str) -> None:
        """Whatever has run so far, and was not told of, was this."""
        so_far = time.perf_counter() - self._began - sum(self._spent.values())
        self._spent[what] = self._spent.get(what, 0.0) + so_far

    def shares(self) -> dict[str, float]:
        """Parts of the time so far: "goodput", that of steps, and "share_WHAT" for all else."""
        total = time.perf_counter() - self._began
        shares = {f"share_{what}": seconds / total for what, seconds in self._spent.items()}
        return {"goodput": 1 - sum(shares.values()), **shares}
