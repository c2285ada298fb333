"""From a source of examples to packed batches, with Grain.

    source -> this process's share -> shuffle -> repeat -> preprocess -> pack -> prefetch

What stands at a place of the endless stream of examples depends on the seed and the place alone.
So an iterator's state is little more than a place, and it resumes exactly.
"""

import dataclasses
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grain
import numpy as np

from transformer_jax.data.packing import Batch, Example, PackedGroup, pack_group
from transformer_jax.data.shuffle import EpochShuffle
from transformer_jax.errors import UserError

Preprocess = Callable[[Any, np.random.Generator], Example]

# Rows are packed for this many batches at once: first fit wastes less the more rows are open.
_BATCHES_IN_GROUP = 4
# A whole group, so that a training step never waits while the next group is packed.
_PREFETCHED_BATCHES = _BATCHES_IN_GROUP


class TrainBatches(Iterator[Batch]):
    """Endless packed batches; what `train_batches` returns.

    State and counts are those of what has been handed out, not of what has been prefetched.
    """

    def __init__(self, packed: "_PackedStream"):
        self._batches = grain.experimental.ThreadPrefetchDatasetIterator(
            packed, _PREFETCHED_BATCHES
        )
        # Lets go of Grain's iterator, and so ends its thread, while the interpreter is still whole:
        # later, on the way out, Grain's destructor would fail and say so on stderr.
        weakref.finalize(self, vars(self).clear)

    def __next__(self) -> Batch:
        return next(self._batches)

    def get_state(self) -> dict[str, int]:
        """Where the iterator stands: a dict of integers, safe to keep as JSON."""
        return dict(self._batches.get_state())

    def set_state(self, state: Mapping[str, int]) -> None:
        """Goes to where `state` was taken: the batches that follow are the same, to the bit.

        That holds for the same source, preprocess and arguments of `train_batches`.
        """
        self._batches.set_state(state)

    @property
    def seen(self) -> int:
        """Examples looked at since the first epoch, the overlong ones included; part of the state.

        Examples are packed for a few batches at a time, and count once the first of these is out.
        """
        return self.get_state()["seen"]

    @property
    def overlong(self) -> int:
        """How many of `seen` were left out because a feature was longer than its row."""
        return self.get_state()["overlong"]


@dataclasses.dataclass(frozen=True)
class EvalBatches(Sequence[Batch]):
    """One pass over a source, in memory: iterate over it as often as you like.

    Attributes:
        seen: number of examples of the source.
        overlong: how many of them were left out because a feature was longer than its row.
    """

    batches: tuple[Batch, ...]
    seen: int
    overlong: int

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def train_batches(
    source: Sequence[Any],
    preprocess: Preprocess,
    *,
    lengths: Mapping[str, int],
    rows: int,
    seed: int,
    shard: tuple[int, int] = (0, 1),
) -> TrainBatches:
    """Endless packed batches of `source`, every example once an epoch, each epoch in a new order.

    Args:
        source: random access to the examples.
        preprocess: `(example, rng) -> {feature: int32 [n]}`, n >= 1; runs in a background thread.
            `rng` is seeded by `seed` and the example's place in the stream: it draws anew in each
            epoch, and the same after a resume.
        lengths: slots of a row for each feature. An example with a longer feature is left out
            whole, and counted.
        rows: rows of a batch (of this process).
        seed: decides order and `rng`.
        shard: (index, count): this process takes examples index, index + count, ...

    Returns:
        An iterator of dicts: for each feature f of length L the int32 arrays f, f_segment_ids and
        f_positions, each [rows, L] (see `packing.PackedRows.arrays`).

    Raises:
        UserError: the shard is empty; or, on taking the first batch, every example is overlong.
    """
    index, count = shard
    mine = range(index, len(source), count)
    if not mine:
        raise UserError(
            f"no training examples for process {index} of {count}: the source has {len(source)}"
        )
    # Hashed with the shard, or all processes would draw the same numbers for different examples.
    noise_seed = int(np.random.SeedSequence([seed, index]).generate_state(1)[0])
    # Over indices rather than `source`: Grain meters each read of a source at more than its cost.
    examples = (
        grain.MapDataset.range(mine.start, mine.stop, mine.step)
        .pipe(EpochShuffle, [seed, index])
        .repeat()
        .random_map(lambda i, rng: preprocess(source[i], rng), seed=noise_seed)
    )
    return TrainBatches(_PackedStream(examples, len(mine), lengths, rows))


def eval_batches(
    source: Sequence[Any],
    preprocess: Preprocess,
    *,
    lengths: Mapping[str, int],
    rows: int,
) -> EvalBatches:
    """One pass over `source` in its order, packed; arguments as for `train_batches`.

    `rng` depends on the example's place alone, so every evaluation draws the same (masks, say).
    The last batch is filled up with empty rows (segment id 0): all batches have one shape.

    Raises:
        UserError: the source is empty, or every example is overlong.
    """
    if not len(source):
        raise UserError("no examples to evaluate: the source is empty")
    examples = grain.MapDataset.range(len(source)).random_map(
        lambda i, rng: preprocess(source[i], rng), seed=0
    )
    batches, position, overlong = [], 0, 0
    while position < len(examples):
        group = pack_group(examples, position, epoch=len(examples), lengths=lengths, rows=rows)
        batches.append(group.arrays)
        position, overlong = group.end, overlong + group.overlong
    return EvalBatches(tuple(batches), seen=position, overlong=overlong)


class _PackedStream:
    """Batches of an endless stream of examples, with a state (the protocol of Grain's iterators).

    Rows are packed in groups of several batches. A state names the place where the current group
    starts and how many of its batches are out; the group itself is packed again on resume.
    """

    def __init__(
        self, examples: grain.MapDataset[Example], epoch: int, lengths: Mapping[str, int], rows: int
    ):
        self._examples, self._epoch, self._lengths, self._rows = examples, epoch, lengths, rows
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
            self._batches = _deal(group.arrays)
        self._state["handed_out"] += 1
        return self._batches.pop(0)

    def get_state(self) -> dict[str, int]:
        return dict(self._state)

    def set_state(self, state: Mapping[str, int]) -> None:
        self._state = dict(state)
        self._batches = []
        if state["handed_out"]:  # else no group has been begun
            group = self._pack(state["group_start"])
            self._batches = _deal(group.arrays)[state["handed_out"] :]

    def _pack(self, start: int) -> PackedGroup:
        rows = self._rows * _BATCHES_IN_GROUP
        return pack_group(
            self._examples, start, epoch=self._epoch, lengths=self._lengths, rows=rows
        )


def _deal(arrays: Batch) -> list[Batch]:
    """A group's rows as batches, dealt out in turn: first fit leaves the last rows emptiest."""
    return [
        {key: np.ascontiguousarray(rows[i::_BATCHES_IN_GROUP]) for key, rows in arrays.items()}
        for i in range(_BATCHES_IN_GROUP)
    ]
