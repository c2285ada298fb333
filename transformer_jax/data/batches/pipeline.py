"""From a source of examples to packed batches, with Grain.

    source -> shuffle -> repeat -> preprocess -> deal to streams -> pack -> prefetch

What stands at a place of the endless sequence of examples depends on the seed and the place alone.
The sequence is dealt to a few streams in turn, and each stream packs its own rows of every batch.
The number of streams does not depend on the number of processes: a process packs those streams that
its rows come from. So the batches are the same for any number of processes, and any number can go
on from a saved state, which is little more than a place in each stream.
"""

import itertools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np

from transformer_jax.data.batches.packing import Batch, Packer
from transformer_jax.data.batches.prepared import Prepared, Preprocess
from transformer_jax.data.batches.shuffle import EpochOrder
from transformer_jax.data.batches.streamed import StreamedFeatures, StreamedText
from transformer_jax.data.batches.streams import Streams
from transformer_jax.data.examples import Corpora, RandomAccess
from transformer_jax.errors import UserError

_PREFETCHED_BATCHES = 16
"""So many packed batches wait that a training step does not, while the next group is packed."""


class TrainBatches(Iterator[Batch]):
    """Endless packed batches, made by `train_batches`.

    State and counts are those of the batches handed out, whatever has been prefetched.
    """

    def __init__(self, streams: Streams):
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


def _end(attributes: dict[str, Any], streams: Streams) -> None:
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
        return TrainBatches(Streams(streamed, packer, shard, num_workers))
    epoch = Prepared(source, range(len(source)), preprocess, seed)
    endless = Prepared(source, _order(source, seed), preprocess, seed)
    return TrainBatches(Streams(endless, Packer(epoch, lengths, rows), shard, num_workers))


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
