"""One example as a model reads it."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from transformer_jax.data.batches.padding import padded_batch


@dataclasses.dataclass(frozen=True)
class Reading:
    """One example as a model reads it.

    Attributes:
      texts: what is read and written, by its name: "source" and "target", or "text".
      tokens: the ids that each stack reads, by the stack: "encoder", "decoder".
      pieces: the same as their vocabulary writes them.
      inputs: what the model is called with, a batch of one row, filled up with padding.
      outputs: the ids that the last stack's features predict, where they are known.
    """

    texts: Mapping[str, str]
    tokens: Mapping[str, Sequence[int]]
    pieces: Mapping[str, Sequence[str]]
    inputs: tuple[np.ndarray, ...]
    outputs: Sequence[int] | None = None

    @property
    def last_stack(self) -> str:
        """The stack whose features make the logits."""
        return [*self.tokens][-1]


def as_row(tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, positions and segment ids of one row, int32 [1, T], as models take them."""
    batch = padded_batch([{"row": tokens}])
    return batch["row"], batch["row_positions"], batch["row_segment_ids"]
