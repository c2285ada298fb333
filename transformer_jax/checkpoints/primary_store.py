"""Checkpoints in a directory that process 0 of a job has, and the others have not."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from transformer_jax.checkpoints.selection import Which
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.parallel import hosts, passing


class PrimaryCheckpoints(Checkpoints):
    """As `Checkpoints`, of a training; all processes call each of these methods.

    Process 0 writes and reads: the whole state passes through its memory and its network.
    """

    def save(self, step: int, state: Any, data_state: Any) -> None:
        """As `Checkpoints.save`."""
        whole, save = passing.to_primary(state), super().save
        hosts.from_primary(lambda: save(step, whole, data_state))

    def score(self, step: int, score: float) -> None:
        """As `Checkpoints.score`."""
        keep = super().score
        hosts.from_primary(lambda: keep(step, score))

    def wait(self) -> None:
        """As `Checkpoints.wait`."""
        hosts.from_primary(super().wait)

    def close(self) -> None:
        """As `Checkpoints.close`; each process by itself."""
        with hosts.alone():
            super().close()

    def latest_step(self) -> int | None:
        """As `Checkpoints.latest_step`."""
        return hosts.from_primary(super().latest_step)

    def restore(
        self, which: Which, abstract_state: Any, fresh: Mapping[str, float] | None = None
    ) -> tuple[int, Any, Any]:
        """As `Checkpoints.restore`; each leaf of `abstract_state` has its sharding."""
        restore, on_host = super().restore, jax.tree.map(_without_memory, abstract_state)
        found: list[Any] = []

        def read() -> tuple[int, Any]:
            step, state, data_state = restore(which, on_host, fresh)
            found.append(state)
            return step, data_state

        step, data_state = hosts.from_primary(read)
        state = passing.from_primary(found.pop() if found else None, abstract_state)
        return step, state, data_state


def _without_memory(leaf: Any) -> np.ndarray:
    """A NumPy array with the shape and dtype of another one."""
    return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
