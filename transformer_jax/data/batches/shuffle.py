"""A new order of the examples in each epoch."""

import sys

import grain
import numpy as np


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
