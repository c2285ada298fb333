"""Streams: a batch's rows divided into parts that are packed apart, by one process or several."""

import math
from collections.abc import Mapping

import grain
import numpy as np

from transformer_jax.data.batches.packing import Batch, Example, PackedGroup, pack_group
from transformer_jax.errors import UserError

# As many processes at most share the packing of a batch; of more, several pack the same stream.
_STREAMS = 8
# A stream packs this many rows at once: first fit wastes less the more rows are open.
_OPEN_ROWS = 128


class Streams:
    """The rows of one process in each batch (the protocol of Grain's iterators).

    Args:
        examples: an endless sequence.
        epoch: each different example once.
        lengths: slots of a row for each feature.
        rows: of a batch, over all processes.
        shard: (index, count) of this process.
    """

    def __init__(
        self,
        examples: grain.MapDataset[Example],
        epoch: grain.MapDataset[Example],
        lengths: Mapping[str, int],
        rows: int,
        shard: tuple[int, int],
    ):
        count = math.gcd(rows, _STREAMS)
        of_stream, (index, processes) = rows // count, shard
        first, last = (rows * i // processes for i in (index, index + 1))
        mine = range(first // of_stream, math.ceil(last / of_stream))
        self._streams = {
            str(i): _PackedStream(examples[i::count], epoch, lengths, of_stream) for i in mine
        }
        self._rows = slice(first - mine.start * of_stream, last - mine.start * of_stream)

    def __next__(self) -> Batch:
        parts = [next(stream) for stream in self._streams.values()]
        return {
            name: np.concatenate([part[name] for part in parts])[self._rows] for name in parts[0]
        }

    def get_state(self) -> dict[str, dict[str, int]]:
        return {i: stream.get_state() for i, stream in self._streams.items()}

    def set_state(self, state: Mapping[str, Mapping[str, int]]) -> None:
        for i, stream in self._streams.items():
            if i not in state:
                raise UserError(f"the saved place in the data lacks stream {i}")
            stream.set_state(state[i])


class _PackedStream:
    """One stream's rows of each batch.

    Rows are packed in groups, enough for several batches. A state names the place where the current
    group starts and how many of its batches are out; the group is packed again on resume.
    """

    def __init__(
        self,
        examples: grain.MapDataset[Example],
        epoch: grain.MapDataset[Example],
        lengths: Mapping[str, int],
        rows: int,
    ):
        self._examples, self._epoch, self._lengths, self._rows = examples, epoch, lengths, rows
        self._batches_in_group = max(1, _OPEN_ROWS // rows)
        self._state = {"group_start": 0, "handed_out": 0, "seen": 0, "overlong": 0}
        self._batches: list[Batch] = []  # those of the current group that are not out yet

    def __next__(self) -> Batch:
        if not self._batches:
            start = self._state["seen"]
            group = self._pack(start)
            overlong = self._state["overlong"] + group.overlong
            self._state = {
                "group_start": start,
                "handed_out": 0,
                "seen": group.end,
                "overlong": overlong,
            }
            self._batches = self._deal(group.arrays)
        self._state["handed_out"] += 1
        return self._batches.pop(0)

    def get_state(self) -> dict[str, int]:
        return dict(self._state)

    def set_state(self, state: Mapping[str, int]) -> None:
        self._state = dict(state)
        self._batches = []
        if state["handed_out"]:  # else no group has been begun
            group = self._pack(state["group_start"])
            self._batches = self._deal(group.arrays)[state["handed_out"] :]

    def _pack(self, start: int) -> PackedGroup:
        rows = self._rows * self._batches_in_group
        return pack_group(
            self._examples, start, epoch=self._epoch, lengths=self._lengths, rows=rows
        )

    def _deal(self, arrays: Batch) -> list[Batch]:
        """A group's rows as batches, in turn: first fit leaves the last rows emptiest."""
        count = self._batches_in_group
        return [{name: rows[i::count] for name, rows in arrays.items()} for i in range(count)]
