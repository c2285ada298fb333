# SPDX-License-Identifier: Apache-2.0
"""Training order: endless sequences of examples with a new order in each epoch.

The item at an index depends on the seed and the index alone, so a run can resume from an index.
Items are made when they are requested.
"""

import dataclasses
import functools
import itertools
import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from transformer_jax.data.batches.windows import Slices
from transformer_jax.data.examples import Corpora, Features, RandomAccess

type Preprocess[Item] = Callable[[Item, np.random.Generator], Features]
"""(example, rng) -> its features, each of at least one token. Called in a background thread, or
pickled for worker processes. `rng` is valid during the call only; it is a `PlacedRng`."""


class _DrawnOrder:
    """Endless sequence of numbers, drawn block by block; the last blocks stay in memory, since the
    streams are not all in the same one.

    Args:
      block_size: numbers of a block.
      num_kept: blocks in memory.
    """

    def __init__(self, block_size: int, num_kept: int):
        self._block_size = block_size
        self._num_kept = num_kept
        self._blocks: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> int:
        block, place = divmod(index, self._block_size)
        return int(self._block(block)[place])

    def at(self, indices: np.ndarray) -> np.ndarray:
        """The numbers at increasing indices, int64 [n]."""
        blocks, places = np.divmod(indices, self._block_size)
        parts = [self._block(int(block))[places[blocks == block]] for block in np.unique(blocks)]
        return np.concatenate(parts).astype(np.int64)

    def _block(self, block: int) -> np.ndarray:
        numbers = self._blocks.get(block)
        if numbers is None:
            numbers = self._draw(block)
            last = [*self._blocks.items()][1 - self._num_kept :]
            self._blocks = {**dict(last), block: numbers}
        return numbers

    @abstractmethod
    def _draw(self, block: int) -> np.ndarray:
        """The numbers of a block, [block_size]."""


class EpochOrder(_DrawnOrder):
    """Endless sequence of the numbers from `first` to `stop` - 1, each once per epoch.

    Grain's own shuffle needs no memory (this one: 4 bytes per example for each of two epochs), but
    below a few thousand examples it takes up to milliseconds for each: it walks a cycle through
    2^16 indices until it finds one of the set.

    Args:
      first, stop: range of the numbers; not empty.
    """

    def __init__(self, first: int, stop: int, seed: int):
        super().__init__(stop - first, num_kept=2)
        self._first = first
        self._seed = seed

    def _draw(self, epoch: int) -> np.ndarray:
        order = np.arange(self._first, self._first + self._block_size, dtype=np.uint32)
        # Corpora of equal sizes in a mixture may be translations of each other: each has its own
        # order. (A last zero changes nothing.)
        np.random.default_rng([self._seed, epoch, self._first]).shuffle(order)
        return order


class MixedOrder(_DrawnOrder):
    """Endless sequence that mixes others in stated shares.

    Each block of places has its exact share of each sequence, at drawn places: a stream that takes
    every n-th place has the same shares. (A round robin would fall into step with it.)

    Args:
      orders: the sequences, each in its own order.
      weights: relative frequencies, positive.
    """

    def __init__(self, orders: Sequence[EpochOrder], weights: Sequence[float], seed: int):
        # The most frequent sequence has a place in a block for each of the others.
        super().__init__(max(256, 4 * len(weights) ** 2), num_kept=64)
        self._orders = orders
        self._shares = np.array(weights) / math.fsum(weights)
        self._seed = seed

    def _draw(self, block: int) -> np.ndarray:
        before = self._counts(block * self._block_size)
        counts = self._counts((block + 1) * self._block_size) - before
        sequences = np.repeat(np.arange(len(counts)), counts)
        np.random.default_rng([self._seed, block, 3]).shuffle(sequences)
        numbers = np.empty(self._block_size, np.int64)
        for i in np.flatnonzero(counts).tolist():
            numbers[sequences == i] = self._orders[i].at(before[i] + np.arange(counts[i]))
        return numbers

    def _counts(self, places: int) -> np.ndarray:
        """Numbers taken of each sequence before a place; the most frequent one fills up."""
        counts = np.floor(self._shares * places).astype(np.int64)
        counts[self._shares.argmax()] += places - counts.sum()
        return counts


type Order = EpochOrder | MixedOrder | range


def endless_order(source: Sequence[Any], seed: int) -> EpochOrder | MixedOrder:
    """Endless sequence of indices into `source`, or into its blocks, shuffled in each epoch; with
    weights, each corpus has epochs of its own, and the weights are those of windows."""
    blocks = source.blocks if isinstance(source, WindowedBlocks) else source
    if not isinstance(blocks, Corpora) or not blocks.weights:
        return EpochOrder(0, len(blocks), seed)
    orders = [EpochOrder(*part, seed) for part in itertools.pairwise(blocks.starts)]
    weights = blocks.weights
    if isinstance(source, WindowedBlocks):  # a block of a small corpus has fewer windows
        sizes = [np.mean([len(block.tokens) for block in part]) for part in blocks.parts]
        weights = tuple(np.divide(weights, sizes).tolist())
    return MixedOrder(orders, weights, seed)


_SIZED_AT_ONCE = 256  # examples whose sizes are looked up together

_ARRAY_BYTES = 200
"""Size of an array without its values, and its share of a dictionary."""


class PlacedRng(np.random.Generator):
    """Generator of random numbers of an item.

    Attributes:
      place: index of the item in the order.
    """

    place: int


class IndexedRng:
    """Generator of random numbers that depend on the seed and the index of an item alone.

    Draws the same numbers as Grain's `random_map`, in a quarter of the time.
    """

    def __init__(self, seed: int):
        self._seed = seed
        self._rng = PlacedRng(np.random.Philox(seed))
        self._state = self._rng.bit_generator.state

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return IndexedRng, (self._seed,)  # arrays that were pickled may be read-only

    def at(self, index: int) -> PlacedRng:
        """Generator for an index, valid until the next call."""
        # The highest of four 64-bit words: no index draws the numbers of another.
        self._state["state"]["counter"][3] = index
        self._rng.bit_generator.state = self._state
        self._rng.place = index
        return self._rng

    @property
    def has_drawn(self) -> bool:
        """True if numbers were drawn since the last call of `at`."""
        # The lowest word counts blocks of four numbers; the first number draws a block.
        return bool(self._rng.bit_generator.state["state"]["counter"][0])


class FixedFeatures(dict[int, Features]):
    """Features that are the same at each visit, by index in the source.

    They are those that were made without a random number. Short text is tokenized once this way,
    not once per epoch. When there is no more room, the others are made again at each visit.

    Attributes:
      room: bytes that may still be added.
    """

    room = 2**27

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return FixedFeatures, ()  # each process keeps those of its own examples

    def add(self, index: int, features: Features) -> None:
        """Keeps the features of an example if there is room."""
        size = sum(values.nbytes + _ARRAY_BYTES for values in features.values())
        self.room = max(0, self.room - size)
        if self.room:
            self[index] = features


type SizedExample = tuple[Any, list[int], int]
"""Features of an example, or its index in the source if they are slices; its tokens by feature; and
the index of the next example."""


@dataclasses.dataclass(frozen=True, repr=False)
class OrderedFeatures[Item](RandomAccess[Features]):
    """Features of examples in a given order.

    Attributes:
      source: the examples.
      order: index in `source` of each; may be endless.
      preprocess: makes the features; its `rng` depends on `seed` and the index in `order` alone.
      seed: seed of the `rng`.
      first, step: this sequence has the indices first, first + step, ... of `order`.
      fixed: features of earlier visits, shared by all shards; None: each visit makes its own.
    """

    source: Sequence[Item]
    order: Order
    preprocess: Preprocess[Item]
    seed: int
    first: int = 0
    step: int = 1
    fixed: FixedFeatures | None = None

    def shard(self, index: int, count: int) -> "OrderedFeatures[Item]":
        """Every `count`-th item, from item `index` on."""
        first = self.first + index * self.step
        return dataclasses.replace(self, first=first, step=count * self.step)

    def __len__(self) -> int:
        return len(range(self.first, len(self.order), self.step))

    def epoch(self) -> "OrderedFeatures[Item]":
        """All of the source once, in its order."""
        return dataclasses.replace(self, order=range(len(self.source)), first=0, step=1)

    def sized(self, start: int, features: Sequence[str]) -> Iterator[SizedExample]:
        """The examples from index `start` on, with their sizes by feature.

        Raises:
          ValueError: an example has not exactly these features.
        """
        count = len(self)
        names = set(features)
        index = start
        while index < count:
            example = self.item(index)
            if example.keys() != names:
                raise ValueError(f"got features {sorted(example)}, expected {sorted(names)}")
            index = self.next_index(index)
            yield example, [len(example[name]) for name in features], index

    def tokens(self, feature: str, examples: Sequence[Any]) -> np.ndarray:
        """A feature's tokens of examples of `sized`, one after another."""
        return np.concatenate([example[feature] for example in examples])

    def next_index(self, index: int) -> int:
        """Index of the item after the one at `index`."""
        return index + 1

    def item(self, index: int) -> Features:
        order_index = self.first + index * self.step
        source_index = self.order[order_index]
        if self.fixed is not None and source_index in self.fixed:
            return self.fixed[source_index]
        features = self.preprocess(self.source[source_index], self._rng.at(order_index))
        if self.fixed is not None and self.fixed.room:
            if self._rng.has_drawn:
                self.fixed.room = 0
            else:
                self.fixed.add(source_index, features)
        return features

    @functools.cached_property
    def _rng(self) -> IndexedRng:
        return IndexedRng(self.seed)


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class OrderedSlices(OrderedFeatures[Any]):
    """Features that are slices of arrays, packed without an object for each example.

    Attributes:
      slices: the features of all of `source`, equal to those that `preprocess` makes.
    """

    slices: Slices

    def sized(self, start: int, features: Sequence[str]) -> Iterator[SizedExample]:
        for first in range(start, len(self), _SIZED_AT_ONCE):
            stop = min(first + _SIZED_AT_ONCE, len(self))
            places = self.first + np.arange(first, stop) * self.step
            indices = places if isinstance(self.order, range) else self.order.at(places)
            sizes = np.stack([self.slices[name].sizes(indices) for name in features], axis=1)
            ends = range(first + 1, stop + 1)
            yield from zip(indices.tolist(), sizes.tolist(), ends, strict=True)

    def tokens(self, feature: str, examples: Sequence[Any]) -> np.ndarray:
        return self.slices[feature].tokens(np.array(examples))


@dataclasses.dataclass(frozen=True, repr=False)
class WindowedBlocks[Block](RandomAccess[Block]):
    """Blocks of text, each cut into windows when they are requested.

    Attributes:
      blocks: the text; in `Corpora` with weights each corpus has epochs of its own.
      cut: (block, rng) -> its windows, at least one. The `rng` is for windows that differ from
        epoch to epoch.
    """

    blocks: Sequence[Block]
    cut: Callable[[Block, np.random.Generator], Sequence[Features]]

    def __len__(self) -> int:
        return len(self.blocks)

    def item(self, index: int) -> Block:
        return self.blocks[index]


_WINDOW_BITS = 32
"""Lower bits of an index into `BlockFeatures`: the number of a window in its block."""


class BlockFeatures(OrderedFeatures[Any]):
    """Endless sequence of the windows of blocks (`source` is `WindowedBlocks`), each once per
    epoch; one block is in memory.

    Blocks, in `order`, and the windows of a block have a new order in each epoch. An index combines
    the number of a block of this sequence and the number of a window in it. Indices therefore have
    gaps: `next_index` returns the next one.
    """

    def __len__(self) -> int:
        return sys.maxsize

    def item(self, index: int) -> Features:
        block, window = self._place(index)
        windows, order = self._windows_of(block)
        rng = self._rng.at((block << _WINDOW_BITS) + window)
        return self.preprocess(windows[int(order[window])], rng)

    def next_index(self, index: int) -> int:
        block, window = self._place(index)
        windows, _ = self._windows_of(block)
        is_last = window + 1 == len(windows)
        return (index >> _WINDOW_BITS) + 1 << _WINDOW_BITS if is_last else index + 1

    def _place(self, index: int) -> tuple[int, int]:
        """Index in `order`, which no other shard has, and number of the window."""
        block, window = divmod(index, 1 << _WINDOW_BITS)
        return self.first + block * self.step, window

    def _windows_of(self, block: int) -> tuple[Sequence[Features], np.ndarray]:
        """Windows of a block, and their order."""
        if block not in self._current:
            # Two generators, so that the order does not depend on how many numbers `cut` draws.
            order_rng = np.random.default_rng([self.seed, block, 1])
            cut_rng = np.random.default_rng([self.seed, block, 2])
            text: Any = self.source
            windows = text.cut(text[self.order[block]], cut_rng)
            self._current.clear()
            self._current[block] = windows, order_rng.permutation(len(windows))
        return self._current[block]

    @functools.cached_property
    def _current(self) -> dict[int, tuple[Sequence[Features], np.ndarray]]:
        return {}
