"""From a source of examples to packed batches, with Grain.

    source -> shuffle -> repeat -> preprocess -> deal to streams -> pack -> prefetch

What stands at a place of the endless sequence of examples depends on the seed and the place alone.
The sequence is dealt to a few streams in turn, and each stream packs its own rows of every batch.
The number of streams does not depend on the number of processes: a process packs those streams that
its rows come from. So the batches are the same for any number of processes, and any number can go
on from a saved state, which is little more than a place in each stream.
"""

import dataclasses
import functools
import itertools
import logging
import math
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np

from transformer_jax.data.batches.order import EpochOrder, Prepared, Preprocess
from transformer_jax.data.batches.packing import Batch, Packer
from transformer_jax.data.batches.windows import StreamedFeatures, StreamedText
from transformer_jax.data.batches.workers import Round, Stream, Workers, rounds
from transformer_jax.data.examples import Corpora, RandomAccess
from transformer_jax.errors import UserError

# FOLDED data.batches.streams: Streams: the rows of a batch in parts, each packed by itself, by one
# process or several.


logger = logging.getLogger(__name__)

_STREAMS = 8
"""At most so many processes share the packing of a batch; of more, several pack the same stream."""

_OPEN_ROWS = 128
"""A stream packs this many rows at once: the more rows are open, the less padding first fit leaves.
"""


class BatchIterator:
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


_PREFETCHED_BATCHES = 16
"""So many packed batches wait that a training step does not, while the next group is packed."""


class TrainBatches(Iterator[Batch]):
    """Endless packed batches, made by `train_batches`.

    State and counts are those of the batches handed out, whatever has been prefetched.
    """

    def __init__(self, streams: BatchIterator):
        self._batches = grain.experimental.ThreadPrefetchDatasetIterator(
            streams, _PREFETCHED_BATCHES
        )
        # While the interpreter is whole: as it shuts down, Grain's destructor would fail and say so
        # on stderr.
        self.close = weakref.finalize(self, _end, vars(self), streams)
        """Ends the thread and the worker processes; there are no more batches then."""

    def __next__(self) -> Batch:
        return next(self._batches)

    def start(self) -> None:
        """Begins to pack in the background."""
        self._batches.start_prefetch()

    def get_state(self) -> dict[str, dict[str, int]]:
        """Where each stream stands, by its number: integers, for JSON.

        Of several processes, each has the streams that it packs; their dicts merged are the state
        of the whole.
        """
        return self._batches.get_state()

    def set_state(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Goes to where `state` was taken: the batches that follow are the same, to the bit.

        The arguments of `train_batches` must be the same, except `shard`.

        Raises:
          UserError: a stream that this process packs is not in `state`.
        """
        self._batches.set_state(state)

    @property
    def seen(self) -> int:
        """How many examples this process has looked at since the first epoch, overlong ones too.

        Examples are packed for a few batches at a time, and count once the first of these is out.
        """
        return sum(stream["seen"] for stream in self.get_state().values())

    @property
    def overlong(self) -> int:
        """How many of `seen` were left out because a feature was longer than its row."""
        return sum(stream["overlong"] for stream in self.get_state().values())


def _end(attributes: dict[str, Any], streams: BatchIterator) -> None:
    batches = attributes.pop("_batches")
    streams.stop()  # so that the thread waits for none of them
    batches.close()
    streams.close()


class StackedBatches(Iterator[Batch]):
    """The batches of replicas, each in its own order, stacked: the axis of replicas comes first.

    The state holds those of the replicas, with the replica's number in front of each name.
    """

    def __init__(self, replicas: Sequence[TrainBatches]):
        self._replicas = replicas

    def __next__(self) -> Batch:
        batches = [next(replica) for replica in self._replicas]
        return {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}

    def start(self) -> None:
        """As `TrainBatches.start`."""
        for replica in self._replicas:
            replica.start()

    def close(self) -> None:
        """As `TrainBatches.close`."""
        for replica in self._replicas:
            replica.close()

    def get_state(self) -> dict[str, dict[str, int]]:
        """As `TrainBatches.get_state`."""
        states = enumerate(replica.get_state() for replica in self._replicas)
        return {f"{i}/{name}": place for i, state in states for name, place in state.items()}

    def set_state(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """As `TrainBatches.set_state`."""
        for i, replica in enumerate(self._replicas):
            replica.set_state(replica_state(state, i))

    @property
    def seen(self) -> np.ndarray:
        """Of each replica."""
        return np.array([replica.seen for replica in self._replicas])

    @property
    def overlong(self) -> np.ndarray:
        """Of each replica."""
        return np.array([replica.overlong for replica in self._replicas])


def replica_state(state: Mapping[str, Any], index: int) -> dict[str, Any]:
    """One replica's part of the state of `StackedBatches`, for `TrainBatches.set_state`."""
    prefix = f"{index}/"
    return {
        name.removeprefix(prefix): place for name, place in state.items() if name.startswith(prefix)
    }


@dataclass(frozen=True)
class EvalBatches(RandomAccess[Batch]):
    """One pass over a source, in memory.

    Attributes:
      batches: packed, all of one shape.
      seen: number of examples of the source.
      overlong: how many of them were left out because a feature was longer than its row.
    """

    batches: tuple[Batch, ...]
    seen: int
    overlong: int

    def __len__(self) -> int:
        return len(self.batches)

    def item(self, index: int) -> Batch:
        return self.batches[index]


def train_batches[Item](
    source: Sequence[Item],
    preprocess: Preprocess[Item],
    *,
    lengths: Mapping[str, int],
    rows: int,
    seed: int,
    shard: tuple[int, int] = (0, 1),
    num_workers: int = 0,
) -> TrainBatches:
    """Endless packed batches of `source`, every example once an epoch, each epoch in a new order.

    Of `examples.Corpora` with weights, each corpus has epochs of its own. Of text in blocks
    (`streamed.StreamedText`) the windows of a few blocks at a time are mixed.

    Args:
      source: random access to the examples, or text in blocks.
      preprocess: its `rng` is seeded by `seed` and the example's place in the endless sequence: it
        draws anew in each epoch, and the same after a resume.
      lengths: slots of a row for each feature. An example with a longer feature is left out
        whole, and counted.
      rows: rows of a batch, over all processes.
      seed: decides order and `rng`.
      shard: (index, count): this process has the batch's rows from rows * index / count on, as
        many as each of the `count` processes.
      num_workers: processes that encode and pack in place of a thread of this one. The batches and
        the state are the same for any number, but no more take part than there are streams.

    Returns:
      The batches, each of this process's rows.

    Raises:
      UserError: the source is empty; or, on taking the first batch, every example is overlong.
      ValueError: the processes cannot share the rows equally.
    """
    if not len(source):
        raise UserError("no training examples: the source is empty")
    if rows % shard[1]:
        raise ValueError(f"{rows} rows cannot be shared equally by {shard[1]} processes")
    if isinstance(source, StreamedText):
        packer = Packer((), lengths, rows)  # no window is too long
        streamed = StreamedFeatures(source, preprocess, seed)
        return TrainBatches(BatchIterator(streamed, packer, shard, num_workers))
    epoch = Prepared(source, range(len(source)), preprocess, seed)
    endless = Prepared(source, _order(source, seed), preprocess, seed)
    return TrainBatches(BatchIterator(endless, Packer(epoch, lengths, rows), shard, num_workers))


def eval_batches[Item](
    source: Sequence[Item],
    preprocess: Preprocess[Item],
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
    examples = Prepared(source, range(len(source)), preprocess, seed=0)
    packer, batches, place, overlong = Packer(examples, lengths, rows), [], 0, 0
    while place < len(examples):
        group = packer.pack(examples, place)
        batches.append(group.arrays)
        place, overlong = group.end, overlong + group.overlong
    return EvalBatches(tuple(batches), seen=place, overlong=overlong)


def _order(source: Sequence[Any], seed: int) -> Sequence[int]:
    """The endless sequence of places in `source` that training takes its examples from: each once
    an epoch; of corpora with weights, each corpus in epochs of its own."""
    if not isinstance(source, Corpora) or not source.weights:
        return EpochOrder(0, len(source), seed)
    orders = [EpochOrder(*part, seed) for part in itertools.pairwise(source.starts)]
    return grain.MapDataset.mix(orders, source.weights)
