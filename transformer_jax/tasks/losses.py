# SPDX-License-Identifier: Apache-2.0
"""Losses and scores that the built-in tasks share, on packed rows.

B batch, T slots of a row, M predictions of a row.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.losses import (
    LossOptions,
    TokenLosses,
    symmetric_kl,
    token_sums,
    training_logits,
)
from transformer_jax.metrics import padding_sums
from transformer_jax.models import apply_model
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.tasks.interface import Batch, LossSums, Params, Supervised
from transformer_jax.tokenization import Frame, Tokenizer, Tokenizers

ContextTarget = tuple[Sequence[int], Sequence[int]]
"""Tokens of a context, at least one, and of the target after it."""


def with_loss_mask(context: Sequence[int], target: Sequence[int]) -> tuple[list[int], list[bool]]:
    """Tokens of a context and of the target after it, and a mask of the target's."""
    return [*context, *target], [False] * len(context) + [True] * len(target)


def text_frame(body: Any, tokenizers: Tokenizers) -> Frame:
    """Special tokens around a text, or a pair of texts, that is the only input of a model."""
    specials = tokenizers.specials("text")
    return specials.decoder if isinstance(body, DecoderOnly) else specials.encoder


def batch_shapes(lengths: Mapping[str, int], rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of the arrays of a packed batch."""
    return {
        name: jax.ShapeDtypeStruct((rows, length), jnp.int32)
        for feature, length in lengths.items()
        for name in (feature, f"{feature}_segment_ids", f"{feature}_positions")
    }


def row_inputs(batch: Batch, feature: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tokens, positions and segment ids of a feature, int32 [B, T] each: the inputs of a model."""
    return batch[feature], batch[f"{feature}_positions"], batch[f"{feature}_segment_ids"]


def packed_loss(
    batch: Batch, read: Sequence[str], token_losses: TokenLosses, weights: jax.Array
) -> LossSums:
    """Loss sums of a packed batch over the predictions that count, with the sums that metrics need.

    Args:
      read: features whose tokens the model reads.
      token_losses: losses of the predictions, [B, M] each.
      weights: of the losses, or which ones count: [B, M]; 0 where there is nothing to predict.
    """
    weights = weights.astype(jnp.float32)
    sums = token_sums(token_losses, weights) | padding_sums(batch, read)
    return (token_losses.losses * weights).sum(), weights.sum(), sums


def r_drop_losses(
    predict: Callable[..., Any],
    inputs: Sequence[jax.Array],
    labels: jax.Array,
    options: LossOptions,
) -> TokenLosses:
    """Losses of all predictions by R-Drop, [B, M] each (Liang et al. 2021, equation 4, halved).

    They are the mean cross-entropy of two passes with different dropout, and alpha / 4 of the
    symmetric divergence of their distributions.
    """
    # The copies of a row are neighbors, so that both are on the device of the row.
    *inputs, labels = (jnp.repeat(rows, 2, axis=0) for rows in (*inputs, labels))
    logits = training_logits(predict(*inputs))
    of_copies = options.token_loss.of_logits(logits, labels)
    divergence = symmetric_kl(logits[::2], logits[1::2])
    mean = (of_copies.losses[::2] + of_copies.losses[1::2]) / 2
    losses = mean + options.r_drop / 4 * divergence
    return TokenLosses(losses, of_copies.nll[::2], of_copies.correct[::2])


def row_scores(
    model: Any, params: Params, supervised: Supervised, options: LossOptions
) -> tuple[jax.Array, jax.Array]:
    """log P of each row's labels in nats, float32 [B], and whether greedy search gives them, bool
    [B]."""
    inputs, labels, counted = supervised
    predicted = apply_model(model, params, *inputs, method="unprojected")
    losses = options.unregularized.token_loss.of(predicted, labels)
    return -(losses.nll * counted).sum(axis=1), (losses.correct | ~counted).all(axis=1)


def split_tokens(tokenizer: Tokenizer, source: str, target: str) -> ContextTarget:
    """Tokens of a source, with the first token before them, and tokens of the target.

    Both texts are encoded together, as the tokenizer would encode them in running text. The target
    begins with the first token that differs from those of the source alone: white space at the end
    of the source belongs to it, because tokens begin with it, and so does a token across the
    boundary ("c" and "at" are one token), which would otherwise be predicted at no cost.
    """
    together = tokenizer.encode(source + target)
    alone = tokenizer.encode(source.rstrip()) if target else together
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(together, alone, strict=False))
    count = len(list(same))
    return [tokenizer.specials.first, *together[:count]], together[count:]
