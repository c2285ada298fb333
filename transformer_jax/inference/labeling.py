"""What the tasks that label text share: a program run on one text a row."""

from collections.abc import Callable, Mapping, Sequence
from itertools import batched
from typing import Any

import jax
import numpy as np

from transformer_jax.data.batches.padding import padded_batch
from transformer_jax.inference.batches import FilledBatch

_TEXTS = FilledBatch({"text": [0]}, padded_batch)


def label_rows(
    probabilities: Callable[[Any, Mapping[str, jax.Array]], jax.Array],
    params: Any,
    rows: Sequence[list[int]],
    batch_size: int,
) -> list[np.ndarray]:
    """What a compiled program makes of each row of tokens, a text alone, in order.

    Args:
      probabilities: (params, the feature "text" as a batch [B, T]) -> [B, ...].
      params: of the model, on the devices that share the rows.
      rows: tokens.
      batch_size: rows at once; texts of like length go together.
    """
    results: dict[int, np.ndarray] = {}
    for chosen in batched(sorted(range(len(rows)), key=lambda i: len(rows[i])), batch_size):
        texts = [{"text": rows[i]} for i in chosen]
        found = _TEXTS.run(probabilities, params, texts, batch_size)
        results |= zip(chosen, found, strict=True)
    return [results[i] for i in range(len(rows))]
