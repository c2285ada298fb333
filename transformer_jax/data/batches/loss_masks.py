"""Texts of which some tokens count, as rows of a language model.

N tokens of all texts, D texts.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from transformer_jax.data.examples import Features, RandomAccess

MARKED = ("input", "target", "counted")
"""The features of a text of which some tokens count."""


def marked(tokens: Sequence[int] | np.ndarray, counts: Sequence[bool] | np.ndarray) -> Features:
    """The features of a text: "input": all tokens but the last, "target": all but the first,
    "counted": 1 for each target that counts, int32 [n - 1] each."""
    values = (tokens[:-1], tokens[1:], counts[1:])
    return {name: np.asarray(value, np.int32) for name, value in zip(MARKED, values, strict=True)}


@dataclass(frozen=True)
class MarkedTexts(RandomAccess[Features]):
    """Each text a row, never cut.

    Item i has the features that `marked` makes of a text.

    Attributes:
      tokens: int32 [N].
      counted: bool [N].
      starts: int64 [D + 1], where each text begins, and the end of the last.
    """

    tokens: np.ndarray
    counted: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, texts: Iterable[tuple[Sequence[int], Sequence[bool]]]) -> "MarkedTexts":
        """Those of texts as (tokens, whether each counts)."""
        tokens, counted, starts = array("i"), array("b"), array("q", [0])
        for of_text, marks in texts:
            tokens.extend(of_text)
            counted.extend(marks)
            starts.append(len(tokens))
        return cls(np.array(tokens, np.int32), np.array(counted, bool), np.array(starts, np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def item(self, index: int) -> Features:
        return marked(*self.text(index))

    def text(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of a text, int32 [n], and whether each counts, bool [n]."""
        start, stop = self.starts[index : index + 2]
        return self.tokens[start:stop], self.counted[start:stop]


# FOLDED data.batches.compared_texts: Pairs of texts with one beginning, of which a model is to
# prefer the first. D pairs.


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
