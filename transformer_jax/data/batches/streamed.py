"""Windows of text in blocks, which follow each other without end: nothing but the blocks at hand is
in memory.

A place in such a sequence is the number of a block and that of a window in it, so that training can
go on anywhere without reading what stands before.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from transformer_jax.data.batches.prepared import PlacedRng, Preprocess
from transformer_jax.data.batches.shuffle import EpochOrder
from transformer_jax.data.examples import Features, RandomAccess
from transformer_jax.data.files.blocks import TextBlocks

_WINDOWS_BITS = 32
"""Of a place, those that number the windows of a block."""


@dataclasses.dataclass(frozen=True, repr=False)
class StreamedText(RandomAccess[Sequence[Features]]):
    """Blocks of text, each cut into windows when it is asked for.

    Attributes:
      blocks: of documents.
      cut: documents -> their windows, at least one.
    """

    blocks: TextBlocks
    cut: Callable[[Sequence[str]], Sequence[Features]]

    def __len__(self) -> int:
        return len(self.blocks)

    def item(self, index: int) -> Sequence[Features]:
        return self.cut(self.blocks.documents(index))


class StreamedFeatures(Sequence[Features]):
    """The windows of all blocks, each once an epoch: the blocks in a new order each time, and the
    windows of each in a new order. A sequence of places with gaps: `after` leads from one to the
    next.

    Args:
      text: the blocks.
      preprocess: its `rng` depends on `seed` and the place alone.
      seed: decides the orders.
      hand, hands: of the endless sequence of blocks, dealt to so many hands in turn, this has those
        of one.
    """

    def __init__(
        self,
        text: StreamedText,
        preprocess: Preprocess[Any],
        seed: int,
        hand: int = 0,
        hands: int = 1,
    ):
        self._text, self._preprocess, self._seed = text, preprocess, seed
        self._hand, self._hands = hand, hands
        self._order = EpochOrder(0, len(text), seed)
        self._at_hand: tuple[int, Sequence[Features], np.ndarray] | None = None

    def dealt(self, hand: int, hands: int) -> "StreamedFeatures":
        """As `Prepared.dealt`, of the whole sequence."""
        return StreamedFeatures(self._text, self._preprocess, self._seed, hand, hands)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, place: Any) -> Any:
        ordinal, number = divmod(place, 1 << _WINDOWS_BITS)
        windows, order = self._block(ordinal)
        # Unlike places, which the hands have in common, these are each hand's own.
        drawn = (ordinal * self._hands + self._hand << _WINDOWS_BITS) + number
        return self._preprocess(windows[int(order[number])], self._rng.at(drawn))

    def after(self, place: int) -> int:
        """The place that follows."""
        ordinal, number = divmod(place, 1 << _WINDOWS_BITS)
        windows, _ = self._block(ordinal)
        return place + 1 if number + 1 < len(windows) else ordinal + 1 << _WINDOWS_BITS

    def _block(self, ordinal: int) -> tuple[Sequence[Features], np.ndarray]:
        """The windows of this hand's block of that number, and the order that they come in."""
        if self._at_hand is None or self._at_hand[0] != ordinal:
            number = ordinal * self._hands + self._hand
            windows = self._text[self._order[number]]
            order = np.random.default_rng([self._seed, number, 1]).permutation(len(windows))
            self._at_hand = ordinal, windows, order
        return self._at_hand[1:]

    @functools.cached_property
    def _rng(self) -> PlacedRng:
        return PlacedRng(self._seed)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is made anew, where it is needed."""
        kept = {name: value for name, value in vars(self).items() if name != "_rng"}
        return kept | {"_at_hand": None}
