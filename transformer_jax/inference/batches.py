# SPDX-License-Identifier: Apache-2.0
"""Padded batches for inference: few shapes, so that programs compile once. Labels of texts, and
scores of pairs of source and target."""

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import batched
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.data.batches.packing import Tokens, padded_batch
from transformer_jax.errors import UserError, user_errors
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import check_num_positions
from transformer_jax.parallel import hosts
from transformer_jax.parallel.sharding import place_like, round_up_rows
from transformer_jax.runtime import platform
from transformer_jax.runtime.progress import track

_MOST_BYTES = 1 << 31
"""Memory of a batch: fewer long pairs are scored at once."""

Pair = Mapping[str, Tokens]
"""Features of a pair: the tokens of "source" and "target", for example."""


Program = Callable[[Any, Mapping[str, Any]], Any]
"""Compiled (params, arrays) -> tree of arrays, all with the leading axis of rows."""


@dataclasses.dataclass(frozen=True)
class PaddedBatch[Row]:
    """Makes batches with a constant number of rows.

    Attributes:
      filler: a row that fills up batches.
      to_arrays: rows -> arrays of a batch, each with the leading axis of rows.
    """

    filler: Row
    to_arrays: Callable[[Sequence[Row]], Mapping[str, np.ndarray]]

    def place(self, params: Any, rows: Sequence[Row], batch_size: int) -> Mapping[str, Any]:
        """Arrays of a batch on the devices of `params`, padded to `batch_size` rows or the next
        number that is divisible by the number of devices."""
        fill = round_up_rows(batch_size, params) - len(rows)
        return place_like(params, self.to_arrays([*rows, *[self.filler] * fill]))

    def run(self, program: Program, params: Any, rows: Sequence[Row], batch_size: int) -> Any:
        """Runs a program on at most `batch_size` rows. Returns NumPy arrays without padding."""
        return unpad(program(params, self.place(params, rows, batch_size)), len(rows))

    def run_all(
        self, program: Program, params: Any, rows: Sequence[Row], batch_size: int
    ) -> Iterator[tuple[Row, Any]]:
        """Yields each row with its result, a tree of NumPy arrays."""
        for part in track(batched(rows, batch_size), len(rows), "example"):
            results = self.run(program, params, part, batch_size)
            for i, row in enumerate(part):
                yield row, jax.tree.map(operator.itemgetter(i), results)


def unpad(arrays: Any, count: int) -> Any:
    """Removes padding rows from a tree of arrays and copies it to the host."""
    return jax.tree.map(lambda x: x[:count], hosts.to_host(arrays))


_TEXTS = PaddedBatch({"text": [0]}, padded_batch)


def label_rows(
    program: Program, params: Any, rows: Sequence[list[int]], batch_size: int
) -> list[np.ndarray]:
    """Runs a program, whose arrays are those of the feature "text", on texts in batches of similar
    length. Returns the result of each text, in order."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    texts = [{"text": rows[i]} for i in order]
    results = dict(zip(order, _TEXTS.run_all(program, params, texts, batch_size), strict=True))
    return [results[i][1] for i in range(len(rows))]


class Prediction(NamedTuple):
    """An output and its score, higher is better."""

    text: str
    score: float


class PairScore(NamedTuple):
    """Probability of a target given its source.

    Attributes:
      log_prob: log P(target | source), in nats.
      is_greedy: True if each token of the target is the most likely one, as in greedy search.
    """

    log_prob: float
    is_greedy: bool


def row_bytes(config: TransformerConfig, length: int) -> int:
    """Estimated memory to score a pair of this length: a layer's attention weights and the logits,
    four times each."""
    vocab_size = config.target_vocab_size or config.vocab_size
    return 4 * 4 * (config.num_heads * length**2 + length * vocab_size)


def score_pairs(
    scores: Program, params: Any, pairs: Sequence[Pair], batch_size: int, config: TransformerConfig
) -> list[PairScore]:
    """Scores pairs in batches of similar length; returns the score of each, in order.

    Args:
      scores: compiled (params, packed batch) -> log-probability of each row, and whether it is
        greedy, [B] each.
      config: of the model.

    Raises:
      UserError: a pair exceeds the positions that the model knows, or the memory that there is.
    """
    by_pair: dict[int, PairScore] = {}
    batch: PaddedBatch[Pair] = PaddedBatch(
        {feature: [0] for pair in pairs[:1] for feature in pair}, padded_batch
    )
    lengths = [max(map(len, pair.values())) for pair in pairs]
    with user_errors("score"):
        check_num_positions(config, max(lengths, default=0))
    order = sorted(range(len(pairs)), key=lengths.__getitem__)
    while order:
        length = lengths[order[-1]]  # of those left, the longest first
        size = row_bytes(config, length)
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


type WeightedRow = tuple[int, float, Pair]
"""Number of a pair, weight of a score in that of the pair, and what is scored."""


def weighted_scores(
    scores: Program,
    params: Any,
    rows: Sequence[WeightedRow],
    count: int,
    batch_size: int,
    config: TransformerConfig,
) -> list[PairScore]:
    """Sums of the scores of rows for each of `count` pairs, such as a bound over its masks; other
    arguments and errors as of `score_pairs`."""
    sums = [PairScore(0.0, True)] * count
    scored = [row for _, _, row in rows]
    row_scores = score_pairs(scores, params, scored, batch_size, config)
    for (number, weight, _), (log_prob, is_greedy) in zip(rows, row_scores, strict=True):
        before = sums[number]
        log_prob = before.log_prob + weight * log_prob
        sums[number] = PairScore(log_prob, before.is_greedy and is_greedy)
    return sums
