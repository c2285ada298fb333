"""Texts of which some tokens count, as rows of a language model.

N tokens of all texts, D texts.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from transformer_jax.data.examples import Features, RandomAccess


@dataclass(frozen=True)
class MarkedTexts(RandomAccess[Features]):
    """Each text a row, never cut.

    Item i is {"input": all tokens of a text but the last, "target": all but the first, "counted": 1
    for each target that counts}, int32 [n] each.

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
        start, stop = self.starts[index : index + 2]
        tokens, counted = self.tokens[start:stop], self.counted[start:stop]
        return {
            "input": tokens[:-1],
            "target": tokens[1:],
            "counted": counted[1:].astype(np.int32),
        }
