"""Scoring given pairs of source and target, whatever their lengths."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from transformer_jax.data.batches.padding import padded_batch
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import FilledBatch
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import check_reach
from transformer_jax.runtime import platform

_MOST_BYTES = 1 << 31
"""Of memory for a batch; of long pairs fewer are scored at once."""

Pair = Mapping[str, Sequence[int]]
"""Tokens of the sides "source" and "target"."""

_PAIRS: FilledBatch[Pair] = FilledBatch({"source": [0], "target": [0]}, padded_batch)


def longest(pair: Pair) -> int:
    """Tokens of the longer side."""
    return max(map(len, pair.values()))


def require_reach(config: TransformerConfig, pairs: Sequence[Pair]) -> None:
    """UserError for a pair that goes beyond the positions that a model knows."""
    try:
        check_reach(config, max(map(longest, pairs), default=0))
    except ValueError as error:
        raise UserError(f"score: {error}") from error


def row_bytes(config: TransformerConfig, length: int) -> int:
    """Memory that scoring a pair so long takes an encoder-decoder: a layer's attention weights, and
    the logits, each a few times over."""
    return 4 * 4 * (config.num_heads * length**2 + length * config.target_vocab_size)


def score_pairs(
    log_probs: Callable[[Any, Mapping[str, jax.Array]], jax.Array],
    params: Any,
    pairs: Sequence[Pair],
    batch_size: int,
    row_bytes: Callable[[int], int],
) -> list[float]:
    """What a compiled program makes of each pair, in order; pairs of like length go together.

    Args:
      log_probs: (params, a batch of pairs [B, S] and [B, T]) -> [B].
      params: of the model, on the devices that share the rows.
      pairs: to score.
      batch_size: at most so many pairs at once.
      row_bytes: tokens of a pair's longer side -> bytes of memory that the program takes for it.

    Raises:
      UserError: a single pair takes more memory than there is.
    """
    scores: dict[int, float] = {}
    order = sorted(range(len(pairs)), key=lambda i: longest(pairs[i]))
    while order:
        length = longest(pairs[order[-1]])
        size, memory = row_bytes(length), platform.memory()
        if size > memory:
            raise UserError(
                f"score: a text of {length} tokens takes about {size >> 30} GiB of memory, and "
                f"{memory >> 30} GiB are here"
            )
        rows = max(1, min(batch_size, _MOST_BYTES // size))
        chosen, order = order[-rows:], order[:-rows]
        found = _PAIRS.run(log_probs, params, [pairs[i] for i in chosen], rows)
        scores |= zip(chosen, found.tolist(), strict=True)
    return [scores[i] for i in range(len(pairs))]
