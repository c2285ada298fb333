"""From a source of examples to packed batches, with Grain.

    source -> shuffle -> repeat -> preprocess -> deal to streams -> pack -> prefetch

What stands at a place of the endless sequence of examples depends on the seed and the place alone.
It is dealt to a few streams in turn, and each stream packs its own rows of every batch. How many
streams there are does not depend on how many processes share the work: a process packs the streams
that its rows come from. So the batches are the same for any number of processes, and what is saved
of an iterator, little more than a place in each stream, is of use to any number of them.
"""

import dataclasses
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grain
import numpy as np

from transformer_jax.data.batches.packing import Batch, Example, pack_group
from transformer_jax.data.batches.shuffle import EpochShuffle
from transformer_jax.data.batches.streams import Streams
from transformer_jax.errors import UserError

Preprocess = Callable[[Any, np.random.Generator], Example]

# So many batches wait, packed, that a training step never waits while the next ones are.
_PREFETCHED_BATCHES = 16


class TrainBatches(Iterator[Batch]):
    """Endless packed batches; what `train_batches` returns.

    State and counts are those of what has been handed out, not of what has been prefetched.
    """

    def __init__(self, streams: Streams):
        self._batches = grain.experimental.ThreadPrefetchDatasetIterator(
            streams, _PREFETCHED_BATCHES
        )
        # Lets go of Grain's iterator, and so ends its thread, while the interpreter is still whole:
        # later, on the way out, Grain's destructor would fail and say so on stderr.
        weakref.finalize(self, vars(self).clear)

    def __next__(self) -> Batch:
        return next(self._batches)

    def start(self) -> None:
        """Begins to pack in the background, before the first batch is asked for."""
        self._batches.start_prefetch()

    def get_state(self) -> dict[str, dict[str, int]]:
        """Where each stream stands, by its number: integers, safe to keep as JSON.

        With several processes, those streams that this one packs; their states together, as one
        dict, are the state of the whole.
        """
        return self._batches.get_state()

    def set_state(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Goes to where `state` was taken: the batches that follow are the same, to the bit.

        That holds for the same source, preprocess and arguments of `train_batches` but `shard`.

        Raises:
            UserError: a stream that this process packs is not in `state`.
        """
        self._batches.set_state(state)

    @property
    def seen(self) -> int:
        """Examples of this process looked at since the first epoch, the overlong ones included.

        Examples are packed for a few batches at a time, and count once the first of these is out.
        """
        return sum(stream["seen"] for stream in self.get_state().values())

    @property
    def overlong(self) -> int:
        """How many of `seen` were left out because a feature was longer than its row."""
        return sum(stream["overlong"] for stream in self.get_state().values())


class StackedBatches(Iterator[Batch]):
    """The batches of replicas, each in an order of its own, with an axis of replicas before them.

    Its state is made of theirs, whose names begin with the replica's number.
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
    """What one replica's iterator is to be set to, of the state of `StackedBatches`."""
    prefix = f"{index}/"
    return {
        name.removeprefix(prefix): place for name, place in state.items() if name.startswith(prefix)
    }


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

    Of `examples.Corpora` with weights, each corpus has epochs of its own.

    Args:
        source: random access to the examples.
        preprocess: `(example, rng) -> {feature: int32 [n]}`, n >= 1; runs in a background thread.
            `rng` is seeded by `seed` and the example's place in the sequence: it draws anew in each
            epoch, and the same after a resume.
        lengths: slots of a row for each feature. An example with a longer feature is left out
            whole, and counted.
        rows: rows of a batch, over all processes.
        seed: decides order and `rng`.
        shard: (index, count): this process has the batch's rows from rows * index / count on, as
            many as each of the `count` processes.

    Returns:
        An iterator of dicts: for each feature f of length L the int32 arrays f, f_segment_ids and
        f_positions, each [rows / count, L] (see `packing.PackedRows.arrays`).

    Raises:
        UserError: the source is empty; or, on taking the first batch, every example is overlong.
        ValueError: the processes cannot share the rows equally.
    """
    if not len(source):
        raise UserError("no training examples: the source is empty")
    index, count = shard
    if rows % count:
        raise ValueError(f"{rows} rows cannot be shared equally by {count} processes")

    # Over indices rather than `source`: Grain meters each read of a source at more than its cost.
    def examples(places: grain.MapDataset[int]) -> grain.MapDataset[Example]:
        return places.random_map(lambda i, rng: preprocess(source[i], rng), seed=seed)

    once = examples(grain.MapDataset.range(len(source)))
    return TrainBatches(Streams(examples(_order(source, seed)), once, lengths, rows, shard))


def _order(source: Sequence[Any], seed: int) -> grain.MapDataset[int]:
    """The endless sequence of places in `source` that training takes its examples from: each once
    an epoch; of corpora with weights, each corpus in epochs of its own."""
    weights = getattr(source, "weights", None)
    starts = source.starts if weights else [0, len(source)]
    orders = [
        grain.MapDataset.range(*part).pipe(EpochShuffle, [seed]).repeat()
        for part in itertools.pairwise(starts)
    ]
    return grain.MapDataset.mix(orders, weights) if weights else orders[0]


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
        group = pack_group(examples, position, epoch=examples, lengths=lengths, rows=rows)
        batches.append(group.arrays)
        position, overlong = group.end, overlong + group.overlong
    return EvalBatches(tuple(batches), seen=position, overlong=overlong)
