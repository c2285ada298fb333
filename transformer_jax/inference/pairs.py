"""Scoring given pairs of source and target, whatever their lengths."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from transformer_jax.data.batches.packing import Tokens, padded_batch
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import PaddedBatch
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import check_num_positions
from transformer_jax.runtime import platform

_MOST_BYTES = 1 << 31
"""Of memory for a batch; of long pairs fewer are scored at once."""

Pair = Mapping[str, Tokens]
"""The features of a pair, as models read them: tokens of "source" and "target", say."""


class PairScore(NamedTuple):
    """What a model makes of a target behind its source.

    Attributes:
      log_prob: log P(target | source), in nats.
      is_greedy: whether each token of the target is the likeliest there: greedy search writes it.
    """

    log_prob: float
    is_greedy: bool


def longest(pair: Pair) -> int:
    """Tokens of the longest feature."""
    return max(map(len, pair.values()))


def require_reach(config: TransformerConfig, pairs: Sequence[Pair]) -> None:
    """UserError for a pair that goes beyond the positions that a model knows."""
    try:
        check_num_positions(config, max(map(longest, pairs), default=0))
    except ValueError as error:
        raise UserError(f"score: {error}") from error


def row_bytes(config: TransformerConfig, vocab_size: int, length: int) -> int:
    """Memory that scoring a pair so long takes: a layer's attention weights, and the logits, each a
    few times over."""
    return 4 * 4 * (config.num_heads * length**2 + length * vocab_size)


def score_pairs(
    scores: Callable[[Any, Mapping[str, jax.Array]], tuple[jax.Array, jax.Array]],
    params: Any,
    pairs: Sequence[Pair],
    batch_size: int,
    row_bytes: Callable[[int], int],
) -> list[PairScore]:
    """What a compiled program makes of each pair, in order; pairs of like length go together.

    Args:
      scores: (params, a batch of pairs [B, S] and [B, T]) -> the log-probability of each, and
        whether it is greedy, [B].
      params: of the model, on the devices that share the rows.
      pairs: to score.
      batch_size: at most so many pairs at once.
      row_bytes: tokens of a pair's longest feature -> bytes of memory that the program takes.

    Raises:
      UserError: a single pair takes more memory than there is.
    """
    found: dict[int, PairScore] = {}
    batch: PaddedBatch[Pair] = PaddedBatch(
        {feature: [0] for pair in pairs[:1] for feature in pair}, padded_batch
    )
    order = sorted(range(len(pairs)), key=lambda i: longest(pairs[i]))
    while order:
        length = longest(pairs[order[-1]])
        size, memory = row_bytes(length), platform.usable_memory()
        if memory is not None and size > memory:
            raise UserError(
                f"score: a text of {length} tokens takes about {size >> 30} GiB of memory, and "
                f"{memory >> 30} GiB are here"
            )
        rows = max(1, min(batch_size, _MOST_BYTES // size))
        chosen, order = order[-rows:], order[:-rows]
        log_probs, is_greedy = batch.run(scores, params, [pairs[i] for i in chosen], rows)
        of_chosen = map(PairScore, log_probs.tolist(), is_greedy.tolist())
        found |= zip(chosen, of_chosen, strict=True)
    return [found[i] for i in range(len(pairs))]
