"""What the tasks that label text share: a program run on one text a row."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax.data.batches.padding import padded_batch
from transformer_jax.inference.batches import FilledBatch, in_batches
from transformer_jax.tokenization import EOS

_TEXTS = FilledBatch({"text": [EOS]}, padded_batch)


def label_rows(
    probabilities: Callable[[Any, Mapping[str, jax.Array]], jax.Array],
    params: Any,
    rows: Sequence[Sequence[int]],
    batch_size: int,
) -> list[np.ndarray]:
    """What a compiled program makes of each row of tokens, a text alone, in order.

    Args:
      probabilities: (params, the feature "text" as a batch [B, T]) -> [B, ...].
      params: of the model, on the devices that share the rows.
      rows: tokens.
      batch_size: rows at once; texts of like length go together.
    """

    def run(texts: Sequence[Sequence[int]]) -> np.ndarray:
        return _TEXTS.run(probabilities, params, [{"text": list(t)} for t in texts], batch_size)

    return in_batches(rows, batch_size, run, length=len)
