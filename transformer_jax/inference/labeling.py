"""What the tasks that put labels on text share: inference on one text a row."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import batched
from typing import Any

import jax
import numpy as np

from transformer_jax.data.batches.padding import padded_batch
from transformer_jax.parallel import hosts
from transformer_jax.parallel.mesh import place_like, round_up_rows
from transformer_jax.tokenization import EOS


def label_rows(
    probabilities: Callable[[Any, Mapping[str, jax.Array]], jax.Array],
    params: Any,
    rows: Sequence[Sequence[int]],
    batch_size: int,
) -> Iterator[np.ndarray]:
    """What a compiled function makes of each row of tokens, a text alone, in order.

    Args:
      probabilities: (params, the feature "text" as a batch [B, T]) -> [B, ...].
      params: of the model, on the devices that share the rows.
      rows: tokens.
      batch_size: rows at once; texts of like length go together.
    """
    results: list[np.ndarray] = [np.zeros(0)] * len(rows)
    size = round_up_rows(batch_size, params)
    for indices in batched(sorted(range(len(rows)), key=lambda i: len(rows[i])), batch_size):
        texts = [{"text": rows[i]} for i in indices]
        fill = [{"text": [EOS]}] * (size - len(texts))
        batch = place_like(params, padded_batch([*texts, *fill]))
        found = hosts.to_host(probabilities(params, batch))
        for i, result in zip(indices, found, strict=False):
            results[i] = result
    yield from results
