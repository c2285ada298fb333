"""Streams: the rows of a batch in parts, each packed by itself, by one process or several."""

import dataclasses
import math
from collections.abc import Mapping

import grain
import numpy as np

from transformer_jax.data.batches.packing import Batch, Packer
from transformer_jax.data.examples import Features
from transformer_jax.errors import UserError

_STREAMS = 8
"""At most so many processes share the packing of a batch; of more, several pack the same stream."""

_OPEN_ROWS = 128
"""A stream packs this many rows at once: the more rows are open, the less padding first fit leaves.
"""


class Streams:
    """The rows of one process in each batch (the protocol of Grain's iterators).

    Args:
      examples: an endless sequence.
      packer: of the rows of a batch, over all processes.
      shard: (index, count) of this process.
    """

    def __init__(
        self, examples: grain.MapDataset[Features], packer: Packer, shard: tuple[int, int]
    ):
        count = math.gcd(packer.rows, _STREAMS)
        of_stream, (index, processes) = packer.rows // count, shard
        first, last = (packer.rows * i // processes for i in (index, index + 1))
        mine = range(first // of_stream, math.ceil(last / of_stream))
        self._streams = {str(i): _PackedStream(examples[i::count], packer, of_stream) for i in mine}
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

    Rows are packed in groups, enough for several batches. A state holds the place where the current
    group starts and how many of its batches are out; on resume the group is packed again.
    """

    def __init__(self, examples: grain.MapDataset[Features], packer: Packer, rows: int):
        self._batches_in_group = max(1, _OPEN_ROWS // rows)
        self._examples = examples
        self._packer = dataclasses.replace(packer, rows=rows * self._batches_in_group)
        self._state = {"group_start": 0, "handed_out": 0, "seen": 0, "overlong": 0}
        self._batches: list[Batch] = []  # those of the current group that are not out yet

    def __next__(self) -> Batch:
        if not self._batches:
            start = self._state["seen"]
            group = self._packer.pack(self._examples, start)
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
            group = self._packer.pack(self._examples, state["group_start"])
            self._batches = self._deal(group.arrays)[state["handed_out"] :]

    def _deal(self, arrays: Batch) -> list[Batch]:
        """A group's rows as batches, in turn: first fit leaves the last rows emptiest."""
        count = self._batches_in_group
        return [{name: rows[i::count] for name, rows in arrays.items()} for i in range(count)]
