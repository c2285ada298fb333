"""Examples as features, made when they are asked for."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from functools import cached_property

import grain
import numpy as np

from transformer_jax.data.examples import Features, RandomAccess

type Preprocess[Item] = Callable[[Item, np.random.Generator], Features]
"""(example, rng) -> its features, each of one token or more. Runs in a background thread, or in
worker processes, to which it is pickled. `rng` is good for this call alone."""


@dataclasses.dataclass(frozen=True, repr=False)
class Prepared[Item](RandomAccess[Features]):
    """The features of examples, in some order.

    Attributes:
      source: the examples.
      order: the place in `source` of each; may be endless.
      preprocess: its `rng` depends on `seed` and the place in `order` alone.
      seed: of what `preprocess` draws.
      first, step: of `order`, only the places first, first + step, ... are in this sequence.
    """

    source: Sequence[Item]
    order: Sequence[int]
    preprocess: Preprocess[Item]
    seed: int
    first: int = 0
    step: int = 1

    def dealt(self, index: int, count: int) -> "Prepared[Item]":
        """The part of one hand, `index`, where the sequence is dealt to `count` in turn."""
        first, step = self.first + index * self.step, count * self.step
        return dataclasses.replace(self, first=first, step=step)

    def __len__(self) -> int:
        return len(range(self.first, len(self.order), self.step))

    def after(self, index: int) -> int:
        """The place that follows one in this sequence."""
        return index + 1

    def item(self, index: int) -> Features:
        place = self.first + index * self.step
        return self.preprocess(self.source[self.order[place]], self._rng.at(place))

    @cached_property
    def _rng(self) -> "PlacedRng":
        return PlacedRng(self.seed)


class PlacedRng:
    """A generator that is set to a place: what it draws depends on seed and place alone.

    It draws what Grain's `random_map` would at the place, in a quarter of the time.
    """

    def __init__(self, seed: int):
        self._rng = np.random.Generator(np.random.Philox(seed))
        self._state = self._rng.bit_generator.state

    def at(self, place: int) -> np.random.Generator:
        """The generator, good until the next call."""
        self._state["state"]["counter"][3] = place
        self._rng.bit_generator.state = self._state
        return self._rng


# FOLDED data.batches.shuffle: A new order of the examples in each epoch.


class EpochOrder(grain.MapDataset[int]):
    """The endless sequence of the numbers from `first` up to `stop`, each once an epoch.

    Grain's own shuffle needs no memory (this one: 4 bytes an example for each of two epochs), but
    below some thousand examples it takes up to milliseconds for each: it walks a cycle through 2^16
    indices until it meets one of the set.

    Args:
      first, stop: at least one number.
      seed: decides the orders.
    """

    def __init__(self, first: int, stop: int, seed: int):
        super().__init__()
        self._first, self._size = first, stop - first
        self._seed = seed
        self._orders: dict[int, np.ndarray] = {}  # of the last two epochs asked for

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, place: int) -> int:
        epoch, i = divmod(place, self._size)
        order = self._orders.get(epoch)
        if order is None:
            order = self._draw(epoch)
        return self._first + int(order[i])

    def _draw(self, epoch: int) -> np.ndarray:
        order = np.arange(self._size, dtype=np.uint32)
        np.random.default_rng([self._seed, epoch]).shuffle(order)
        kept = [*self._orders.items()][-1:]  # streams stand before and behind an epoch's end
        self._orders = {**dict(kept), epoch: order}
        return order
