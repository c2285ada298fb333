# SPDX-License-Identifier: Apache-2.0
"""Scoring of given pairs of source and target, of any length."""

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
"""Memory of a batch: fewer long pairs are scored at once."""

Pair = Mapping[str, Tokens]
"""Features of a pair: the tokens of "source" and "target", for example."""


class PairScore(NamedTuple):
    """Probability of a target given its source.

    Attributes:
      log_prob: log P(target | source), in nats.
      is_greedy: True if each token of the target is the most likely one, as in greedy search.
    """

    log_prob: float
    is_greedy: bool


def longest(pair: Pair) -> int:
    """Length of the longest feature."""
    return max(map(len, pair.values()))


def check_pair_lengths(config: TransformerConfig, pairs: Sequence[Pair]) -> None:
    """Raises UserError if a pair exceeds the positions that a model knows."""
    try:
        check_num_positions(config, max(map(longest, pairs), default=0))
    except ValueError as error:
        raise UserError(f"score: {error}") from error


def row_bytes(config: TransformerConfig, vocab_size: int, length: int) -> int:
    """Estimated memory to score a pair of this length: a layer's attention weights and the logits,
    four times each."""
    return 4 * 4 * (config.num_heads * length**2 + length * vocab_size)


def score_pairs(
    scores: Callable[[Any, Mapping[str, jax.Array]], tuple[jax.Array, jax.Array]],
    params: Any,
    pairs: Sequence[Pair],
    batch_size: int,
    row_bytes: Callable[[int], int],
) -> list[PairScore]:
    """Scores pairs, in batches of similar length.

    Args:
      scores: compiled (params, packed batch) -> log-probability of each row, and whether it is
        greedy, [B] each.
      pairs: pairs to score.
      batch_size: largest number of pairs scored at once.
      row_bytes: length of a pair's longest feature -> bytes of memory that the program needs.

    Returns:
      The score of each pair, in order.

    Raises:
      UserError: a single pair needs more memory than there is.
    """
    by_pair: dict[int, PairScore] = {}
    batch: PaddedBatch[Pair] = PaddedBatch(
        {feature: [0] for pair in pairs[:1] for feature in pair}, padded_batch
    )
    order = sorted(range(len(pairs)), key=lambda i: longest(pairs[i]))
    while order:
        length = longest(pairs[order[-1]])  # of those left, the longest first
        size = row_bytes(length)
        memory = platform.usable_memory()
        if memory is not None and size > memory:
            raise UserError(
                f"score: a text of {length} tokens takes about {size >> 30} GiB of memory, and "
                f"{memory >> 30} GiB are here"
            )
        rows = max(1, min(batch_size, _MOST_BYTES // size))
        indices = order[-rows:]
        order = order[:-rows]
        log_probs, is_greedy = batch.run(scores, params, [pairs[i] for i in indices], rows)
        pair_scores = map(PairScore, log_probs.tolist(), is_greedy.tolist())
        by_pair |= zip(indices, pair_scores, strict=True)
    return [by_pair[i] for i in range(len(pairs))]
