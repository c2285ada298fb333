"""Pairs of texts with one beginning, of which a model is to prefer the first.

D pairs.
"""

from dataclasses import dataclass

import numpy as np

from transformer_jax.data.batches.marked_texts import MARKED, MarkedTexts
from transformer_jax.data.examples import Features, RandomAccess

CHOSEN, REJECTED, REFERENCE = "chosen", "rejected", "reference"
SIDES = (CHOSEN, REJECTED)
COMPARED = (*(f"{side}_{name}" for side in SIDES for name in MARKED), REFERENCE)
"""The features of a pair."""


@dataclass(frozen=True)
class ComparedTexts(RandomAccess[Features]):
    """Each pair an item, never cut.

    Item i has, for "chosen" and "rejected", the features that `marked_texts.marked` makes, their
    names behind chosen_ or rejected_; and "reference": what `bits` makes of the pair's two numbers.

    Attributes:
      chosen, rejected: D texts each.
      reference: float32 [D, 2], log P of what counts of both under the model that training starts
        from.
    """

    chosen: MarkedTexts
    rejected: MarkedTexts
    reference: np.ndarray

    def __len__(self) -> int:
        return len(self.reference)

    def item(self, index: int) -> Features:
        return {
            f"{side}_{name}": values
            for side in SIDES
            for name, values in getattr(self, side)[index].items()
        } | {REFERENCE: bits(self.reference[index])}


def bits(numbers: np.ndarray) -> np.ndarray:
    """Float32 numbers as the int32 that features are, whose bits are theirs."""
    return np.ascontiguousarray(numbers, np.float32).view(np.int32)
