# SPDX-License-Identifier: Apache-2.0
"""Input pipeline: from a source of examples to packed batches, with Grain.

    source -> shuffle -> repeat -> preprocess -> shard into streams -> pack -> prefetch

The example at an index of the endless sequence depends on the seed and the index alone (`order`).
The sequence is sharded into a few streams, and each stream packs its own rows of every batch. The
number of streams does not depend on the number of processes: a process packs the streams that its
rows come from. So the batches are the same for any number of processes, and any number can resume
from a saved state, which is little more than an index into each stream.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import grain
import numpy as np

from transformer_jax.data.batches.order import (
    BlockFeatures,
    FixedFeatures,
    OrderedFeatures,
    OrderedSlices,
    Preprocess,
    WindowedBlocks,
    endless_order,
)
from transformer_jax.data.batches.packing import Batch, Packer, StreamGroups, pack_streams
from transformer_jax.data.batches.windows import Slices
from transformer_jax.errors import UserError
from transformer_jax.runtime import platform

logger = logging.getLogger(__name__)

_NUM_STREAMS = 8
"""Largest number of streams; a batch of N rows has gcd(N, this). With more processes than streams,
several processes pack the same stream."""

_OPEN_ROWS = 128
"""Rows that a stream packs at once; the more rows are open, the less padding first fit leaves."""

_DIGEST_BYTES = 16
_DIGITS = 32  # of a SHA-256
_LOOKED_AT = 2000  # examples whose lengths are counted before training
_LENGTH_FIELDS = {"source": "data.max_source_length", "target": "data.max_target_length"}
_PREFETCHED_BATCHES = 16
"""Packed batches that are ready, so that a training step does not wait for the next group."""


def most_workers(num_workers: int | str) -> int:
    """The largest number of worker processes that `data.num_workers` allows.

    For "auto" it is 0 where steps run on CPUs, else one for each stream, but never more than the
    cores beside that of the process itself.
    """
    if num_workers != "auto":
        return int(num_workers)
    if platform.is_cpu():
        return 0
    return min(_NUM_STREAMS, platform.usable_cores() - 1)


class BatchIterator:
    """Rows of one process in each batch, as an iterator of Grain.

    Each stream packs a group of rows at once, enough for several batches; the groups of all streams
    begin with the same batch. The state of a stream contains the index at which its current group
    starts, the number of batches of the group that were returned, and a digest of all of its rows
    in the batches returned so far. A resumed iterator packs the group again.

    Attributes:
      packers: of the streams that this process packs, by number.

    Args:
      packer: packs the rows of a batch of all processes; its examples are endless.
      shard: (index, count) of this process.
      num_workers: worker processes that share its streams; 0: a thread packs them.
    """

    def __init__(self, packer: Packer, shard: tuple[int, int], num_workers: int):
        num_streams = math.gcd(packer.rows, _NUM_STREAMS)
        stream_rows = packer.rows // num_streams  # of each batch
        index, processes = shard
        first = packer.rows * index // processes
        stop = packer.rows * (index + 1) // processes
        numbers = range(first // stream_rows, math.ceil(stop / stream_rows))
        # The process may share its first and last stream with others: only these rows are its own.
        self._rows = slice(first - numbers.start * stream_rows, stop - numbers.start * stream_rows)
        self._stream_rows = stream_rows
        self._batches_in_group = max(1, _OPEN_ROWS // stream_rows)
        group_rows = stream_rows * self._batches_in_group
        self.packers = {
            str(i): dataclasses.replace(
                packer, examples=packer.examples.shard(i, num_streams), rows=group_rows
            )
            for i in numbers
        }
        initial = {"group_start": 0, "handed_out": 0, "seen": 0, "overlong": 0, "digest": 0}
        self._state = {i: dict(initial) for i in self.packers}
        self._batches: Generator[Batch] | None = None
        self.set_workers(num_workers)
        if num_workers > len(self.packers):
            message = "only %d of %d data workers have rows to pack; a batch has %d rows"
            logger.warning(message, len(self.packers), num_workers, packer.rows)

    def __next__(self) -> Batch:
        self._batches = self._batches or self._from_state()
        try:
            return next(self._batches)
        except Exception:
            self.close()  # so that another call fails in the same way
            raise

    def _from_state(self) -> Generator[Batch]:
        """The batches that follow, without end."""
        starts = {i: stream["group_start"] for i, stream in self._state.items()}
        pack = self._workers.pack if self._workers else partial(pack_streams, self.packers)
        returned = next(iter(self._state.values()))["handed_out"]  # the same for each stream
        with contextlib.closing(pack(starts)) as packed:
            for groups in packed:
                batches = self._split_groups(groups)[returned:]
                if not returned:  # else resumed within these groups
                    self._begin(groups)
                while batches:
                    batch = batches.pop(0)  # in memory no longer than until the next one
                    for number, stream in enumerate(self._state.values()):
                        stream["handed_out"] += 1
                        first = number * self._stream_rows
                        rows = slice(first, first + self._stream_rows)
                        # A position that an older version saved has no digest.
                        stream["digest"] = _add_rows(stream.get("digest", 0), batch, rows)
                    yield {name: array[self._rows] for name, array in batch.items()}
                returned = 0

    def _begin(self, groups: StreamGroups) -> None:
        for i, group in groups.items():
            stream = self._state[i]
            stream["group_start"] = stream["seen"]
            stream["seen"] = group.end
            stream["overlong"] += group.overlong
            stream["handed_out"] = 0

    def get_state(self) -> dict[str, dict[str, int]]:
        return {i: dict(stream) for i, stream in self._state.items()}

    def set_state(self, state: Mapping[str, Mapping[str, int]]) -> None:
        for i in self.packers:
            if i not in state:
                raise UserError(f"the saved position in the data has no stream {i}")
        self.close()
        self._state = {i: dict(state[i]) for i in self.packers}

    def set_workers(self, count: int) -> None:
        """Packs with this many worker processes from the next group on; 0: with a thread."""
        self.close()
        self._workers = None
        if count:
            from transformer_jax.data.batches.workers import PackingWorkers

            self._workers = PackingWorkers(self.packers, count)

    def stop(self) -> None:
        """Ends the worker processes; a thread that waits for a batch gets an error."""
        if self._workers:
            self._workers.stop()

    def close(self) -> None:
        """Ends the worker processes; the next batch starts them again."""
        if self._batches:
            self._batches.close()
        self._batches = None

    def _split_groups(self, groups: StreamGroups) -> list[Batch]:
        """Distributes the rows of the groups, whole streams, over batches in turn, since first fit
        leaves the last rows of a group the emptiest.

        First fit also fills the first rows with more short examples. So the mean length of examples
        rises within a group, from its first eighth to its last by 11% in batches of 8 rows, 7% (16
        rows), 3% (64) and 0.5% (256); from 64 rows on that is less than chance makes of single
        batches. Another order would change what follows a saved position.
        """
        count = self._batches_in_group
        parts = [group.arrays for group in groups.values()]
        return [
            {name: np.concatenate([part[name][i::count] for part in parts]) for name in parts[0]}
            for i in range(count)
        ]


def _add_rows(digest: int, batch: Batch, rows: slice) -> int:
    """The digest of a stream after its rows of one more batch."""
    chain = hashlib.sha256(digest.to_bytes(_DIGEST_BYTES))
    for name in sorted(batch):
        chain.update(np.ascontiguousarray(batch[name][rows]))
    return int.from_bytes(chain.digest()[:_DIGEST_BYTES])


def batches_digest(streams: Mapping[str, Mapping[str, int]]) -> str:
    """A digest of the batches up to a position, whatever processes have packed them.

    Args:
      streams: the state of all streams (`TrainBatches.get_state`, merged).
    """
    return hashlib.sha256(json.dumps(streams, sort_keys=True).encode()).hexdigest()[:_DIGITS]


class TrainBatches(Iterator[Batch]):
    """Endless packed batches, made by `train_batches`.

    The state and the counts are those of the batches returned so far; prefetched batches do not
    count.

    Args:
      num_workers: worker processes at first, as of `BatchIterator`.
      most_workers: limit of `add_workers`.
    """

    def __init__(self, streams: BatchIterator, num_workers: int = 0, most_workers: int = 0):
        self._streams = streams
        self._num_workers = num_workers
        self._most_workers = min(most_workers, len(streams.packers))
        self._batches = grain.experimental.ThreadPrefetchDatasetIterator(
            streams, _PREFETCHED_BATCHES
        )
        # Runs before the interpreter shuts down. Grain's destructor would fail after that, with a
        # message on stderr.
        self.close = weakref.finalize(self, _close, vars(self), streams)
        """Ends the thread and the worker processes; there are no more batches afterwards."""

    def __next__(self) -> Batch:
        return next(self._batches)

    def start(self) -> None:
        """Starts to pack in the background."""
        self._batches.start_prefetch()

    def add_workers(self) -> bool:
        """Doubles the worker processes, as far as `data.num_workers` allows; False if it does not.

        The same batches follow. Streams are a power of two, so that no number between would pack
        faster.
        """
        count = min(max(1, 2 * self._num_workers), self._most_workers)
        if count <= self._num_workers:
            return False
        self._num_workers = count
        self._batches.set_state(self._batches.get_state())  # ends the thread
        self._streams.set_workers(count)
        self._batches.start_prefetch()
        return True

    def get_state(self) -> dict[str, dict[str, int]]:
        """State of each stream by its number: integers, for JSON.

        Each process has the state of the streams that it packs. The merged dicts of all processes
        are the complete state.
        """
        return self._batches.get_state()

    def set_state(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Restores a state, after which exactly the same batches follow.

        The arguments of `train_batches` must be the same, except `shard` and `num_workers`.

        Raises:
          UserError: a stream that this process packs is not in `state`.
        """
        self._batches.set_state(state)

    def digest(self, streams: Mapping[str, Mapping[str, int]]) -> str:
        """`batches_digest` of the state of all streams."""
        return batches_digest(streams)

    @property
    def seen(self) -> int:
        """Number of examples that this process has read in all epochs, overlong ones included.

        The examples of a group of batches count from its first batch on.
        """
        return sum(stream["seen"] for stream in self.get_state().values())

    @property
    def overlong(self) -> int:
        """Number of the `seen` examples left out because a feature is longer than a row."""
        return sum(stream["overlong"] for stream in self.get_state().values())


def _close(attributes: dict[str, Any], streams: BatchIterator) -> None:
    batches = attributes.pop("_batches")
    streams.stop()  # so that the thread does not wait for the processes
    batches.close()
    streams.close()


class StackedBatches(Iterator[Batch]):
    """Batches of replicas, each in its own order, stacked along a first axis.

    The state contains the states of the replicas; keys are prefixed by the replica's number.
    """

    def __init__(self, replicas: Sequence[TrainBatches]):
        self._replicas = replicas

    def __next__(self) -> Batch:
        batches = [next(replica) for replica in self._replicas]
        return {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}

    def start(self) -> None:
        """Starts to pack in the background."""
        for replica in self._replicas:
            replica.start()

    def add_workers(self) -> bool:
        """`TrainBatches.add_workers` of each replica."""
        return any([replica.add_workers() for replica in self._replicas])

    def close(self) -> None:
        """Ends the threads and the worker processes."""
        for replica in self._replicas:
            replica.close()

    def get_state(self) -> dict[str, dict[str, int]]:
        """State of each stream of each replica."""
        states = enumerate(replica.get_state() for replica in self._replicas)
        return {f"{i}/{name}": stream for i, state in states for name, stream in state.items()}

    def set_state(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Restores a state; see `TrainBatches.set_state`."""
        for i, replica in enumerate(self._replicas):
            replica.set_state(replica_state(state, i))

    def digest(self, streams: Mapping[str, Mapping[str, int]]) -> np.ndarray:
        """`batches_digest` of each replica."""
        count = len(self._replicas)
        return np.array([batches_digest(replica_state(streams, i)) for i in range(count)])

    @property
    def seen(self) -> np.ndarray:
        """`TrainBatches.seen` of each replica."""
        return np.array([replica.seen for replica in self._replicas])

    @property
    def overlong(self) -> np.ndarray:
        """`TrainBatches.overlong` of each replica."""
        return np.array([replica.overlong for replica in self._replicas])


def replica_state(state: Mapping[str, Any], index: int) -> dict[str, Any]:
    """State of one replica (for `TrainBatches.set_state`) in a state of `StackedBatches`."""
    prefix = f"{index}/"
    return {
        name.removeprefix(prefix): stream
        for name, stream in state.items()
        if name.startswith(prefix)
    }


class EvalBatches(list[Batch]):
    """Packed batches of one pass over a source, all of one shape.

    Attributes:
      overlong: number of examples left out because a feature is longer than a row.
    """

    overlong = 0


def train_batches[Item](
    source: Sequence[Item],
    preprocess: Preprocess[Item],
    *,
    lengths: Mapping[str, int],
    rows: int,
    seed: int,
    shard: tuple[int, int] = (0, 1),
    num_workers: int = 0,
    most_workers: int = 0,
    slices: Slices | None = None,
) -> TrainBatches:
    """Makes endless packed batches: every example once per epoch, each epoch in a new order.

    In `Corpora` with weights each corpus has epochs of its own. In text in blocks
    (`WindowedBlocks`) the windows of a few blocks are mixed at a time.

    Args:
      source: the examples, with random access, or text in blocks.
      preprocess: makes features of an example. Its `rng` depends on `seed` and the example's index
        in the endless sequence: it draws new numbers in each epoch, and the same ones after a
        resume.
      lengths: length of a row for each feature. An example with a longer feature is left out and
        counted.
      rows: rows of a batch of all processes.
      seed: seed of the order and of `rng`.
      shard: (index, count) of this process; it has the rows from rows * index / count on, an equal
        share.
      num_workers: processes that encode and pack instead of a thread. The batches and the state are
        the same for any number; at most one process per stream is used.
      most_workers: limit of `TrainBatches.add_workers`.
      slices: the same features as by `preprocess`, as slices of arrays: faster.

    Returns:
      The batches, with the rows of this process.

    Raises:
      UserError: the source is empty, or (for the first batch) every example is overlong.
      ValueError: the rows cannot be divided equally among the processes.
    """
    if not len(source):
        raise UserError("no training examples: the source is empty")
    if rows % shard[1]:
        raise ValueError(f"{rows} rows cannot be shared equally by {shard[1]} processes")
    order = endless_order(source, seed)
    examples: OrderedFeatures[Any]
    if isinstance(source, WindowedBlocks):
        examples = BlockFeatures(source, order, preprocess, seed)
    elif slices is not None:
        examples = OrderedSlices(source, order, preprocess, seed, slices=slices)
    else:
        examples = OrderedFeatures(source, order, preprocess, seed, fixed=FixedFeatures())
    packer = Packer(examples, lengths, rows)
    streams = BatchIterator(packer, shard, num_workers)
    return TrainBatches(streams, num_workers, most_workers)


def eval_batches[Item](
    source: Sequence[Item],
    preprocess: Preprocess[Item],
    *,
    lengths: Mapping[str, int],
    rows: int,
) -> EvalBatches:
    """Packs `source` once, in its order; arguments as for `train_batches`.

    `rng` depends on the example's index alone, so every evaluation draws the same numbers (masks,
    for example). The last batch is filled with empty rows (segment id 0), so all batches have the
    same shape.

    Raises:
      UserError: the source is empty, or every example is overlong.
    """
    if not len(source):
        raise UserError("no examples to evaluate: the source is empty")
    examples = OrderedFeatures(source, range(len(source)), preprocess, seed=0)
    packer = Packer(examples, lengths, rows)
    batches = EvalBatches()
    index = 0
    while index < len(examples):
        group = packer.pack(index)
        batches.append(group.arrays)
        batches.overlong += group.overlong
        index = group.end
    return batches


def feature_sizes(
    items: Sequence[Any],
    preprocess: Preprocess[Any],
    features: Iterable[str],
) -> dict[str, np.ndarray]:
    """Sizes of features of at most 2,000 examples, spread evenly, int [n] each."""
    places = np.linspace(0, len(items) - 1, min(len(items), _LOOKED_AT)).astype(int)
    rng = np.random.default_rng(0)
    examples = [preprocess(items[place], rng) for place in places.tolist()]
    return {name: np.array([len(example[name]) for example in examples]) for name in features}


def describe_overlong(
    items: Sequence[Any],
    preprocess: Preprocess[Any],
    lengths: Mapping[str, int],
) -> str | None:
    """Says how many examples are longer than a row, and which lengths would keep 99% of them; None
    if all fit.

    Args:
      lengths: length of a row for each feature.
    """
    sizes = feature_sizes(items, preprocess, lengths)
    share = np.mean(np.any([sizes[name] > limit for name, limit in lengths.items()], axis=0))
    if not share:
        return None
    level = 1 - 0.01 / len(lengths)  # so that 99% fit on all sides at once
    changes = []
    for name in lengths.keys() & _LENGTH_FIELDS:
        length = np.quantile(sizes[name], level, method="higher")
        if length > lengths[name]:
            changes.append(f"{_LENGTH_FIELDS[name]}={length} (now {lengths[name]})")
    advice = f"; 99% fit with {' and '.join(sorted(changes))}" if changes else ""
    if lengths.keys().isdisjoint(_LENGTH_FIELDS):
        advice = "; raise data.max_length"
    return f"{share:.1%} of the examples are longer than a row and are left out{advice}"
