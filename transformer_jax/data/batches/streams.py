"""Streams: the rows of a batch in parts, each packed by itself, by one process or several."""

import dataclasses
import functools
import logging
import math
from collections.abc import Generator, Mapping

import numpy as np

from transformer_jax.data.batches.packing import Batch, Packer
from transformer_jax.data.batches.prepared import Prepared
from transformer_jax.data.batches.rounds import Round, Stream, rounds
from transformer_jax.data.batches.streamed import StreamedFeatures
from transformer_jax.data.batches.workers import Workers
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

_STREAMS = 8
"""At most so many processes share the packing of a batch; of more, several pack the same stream."""

_OPEN_ROWS = 128
"""A stream packs this many rows at once: the more rows are open, the less padding first fit leaves.
"""


class Streams:
    """The rows of one process in each batch (the protocol of Grain's iterators).

    Each stream packs a group of rows at once, enough for several batches; their groups begin with
    the same batch. A state holds the place where each stream's current group starts and how many
    of its batches are out; on resume the group is packed again.

    Args:
      examples: an endless sequence.
      packer: of the rows of a batch, over all processes.
      shard: (index, count) of this process.
      num_workers: worker processes that share its streams; 0: it packs them itself.
    """

    def __init__(
        self,
        examples: Prepared | StreamedFeatures,
        packer: Packer,
        shard: tuple[int, int],
        num_workers: int,
    ):
        count = math.gcd(packer.rows, _STREAMS)
        of_stream, (index, processes) = packer.rows // count, shard
        first, last = (packer.rows * i // processes for i in (index, index + 1))
        mine = range(first // of_stream, math.ceil(last / of_stream))
        self._rows = slice(first - mine.start * of_stream, last - mine.start * of_stream)
        self._batches_in_group = max(1, _OPEN_ROWS // of_stream)
        packer = dataclasses.replace(packer, rows=of_stream * self._batches_in_group)
        self._streams = {str(i): Stream(examples.dealt(i, count), packer) for i in mine}
        beginning = {"group_start": 0, "handed_out": 0, "seen": 0, "overlong": 0}
        self._state = {i: dict(beginning) for i in self._streams}
        self._workers = Workers(self._streams, num_workers) if num_workers else None
        if num_workers > len(self._streams):
            logger.warning(
                "only %d of %d data workers have rows to pack; a batch has %d rows",
                *(len(self._streams), num_workers, count * of_stream),
            )
        self._rounds: Generator[Round] | None = None
        self._batches: list[Batch] = []  # those of the current groups that are not out yet

    def __next__(self) -> Batch:
        try:
            packed = self._rounds or self._begin()
            if not self._batches:
                self._take(next(packed))
        except Exception:
            self.close()  # what is asked for again fails again
            raise
        for stream in self._state.values():
            stream["handed_out"] += 1
        return self._batches.pop(0)

    def get_state(self) -> dict[str, dict[str, int]]:
        return {i: dict(stream) for i, stream in self._state.items()}

    def set_state(self, state: Mapping[str, Mapping[str, int]]) -> None:
        for i in self._streams:
            if i not in state:
                raise UserError(f"the saved place in the data lacks stream {i}")
        self.close()
        self._state = {i: dict(state[i]) for i in self._streams}

    def stop(self) -> None:
        """As `Workers.stop`."""
        if self._workers:
            self._workers.stop()

    def close(self) -> None:
        """Ends the worker processes; another batch would start them anew."""
        if self._rounds:
            self._rounds.close()
        self._rounds, self._batches = None, []

    def _begin(self) -> Generator[Round]:
        starts = {i: stream["group_start"] for i, stream in self._state.items()}
        pack = self._workers.rounds if self._workers else functools.partial(rounds, self._streams)
        packed = self._rounds = pack(starts)
        out = next(iter(self._state.values()))["handed_out"]
        if out:  # of groups that an earlier process began
            self._batches = self._deal(next(packed))[out:]
        return packed

    def _take(self, groups: Round) -> None:
        self._batches = self._deal(groups)
        for i, group in groups.items():
            stream = self._state[i]
            stream["group_start"], stream["seen"] = stream["seen"], group.end
            stream["overlong"] += group.overlong
            stream["handed_out"] = 0

    def _deal(self, groups: Round) -> list[Batch]:
        """The groups' rows as batches, in turn: first fit leaves the last rows emptiest."""
        count = self._batches_in_group
        parts = [group.arrays for group in groups.values()]
        return [
            {
                name: np.concatenate([part[name][i::count] for part in parts])[self._rows]
                for name in parts[0]
            }
            for i in range(count)
        ]
