"""A new order of the examples in each epoch."""

import functools
from collections.abc import Sequence

import grain
import numpy as np


class EpochShuffle[T](grain.MapDataset[T]):
    """The parent's examples in an order drawn for each epoch, for `repeat` to follow.

    Grain's own shuffle needs no memory (this one: 4 bytes an example), but below some thousand
    examples it takes up to milliseconds for each: it walks a cycle through 2^16 indices until it
    meets one of the set.

    Args:
      parent: the examples of one epoch.
      seed: decides the orders.
    """

    def __init__(self, parent: grain.MapDataset[T], seed: Sequence[int]):
        super().__init__(parent)
        self._size = len(parent)
        self._seed = seed
        self._order = functools.lru_cache(maxsize=1)(self._draw_order)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> T:
        epoch, i = divmod(place, self._size)
        return self._parent[int(self._order(epoch)[i])]

    def _draw_order(self, epoch: int) -> np.ndarray:
        order = np.arange(self._size, dtype=np.uint32)
        np.random.default_rng([*self._seed, epoch]).shuffle(order)
        return order
