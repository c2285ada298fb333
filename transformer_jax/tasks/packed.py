"""What tasks share: packed rows, the inputs that they make, and sums over what counts.

B batch, T slots, M predictions of a row.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.losses import TokenLosses
from transformer_jax.metrics import slot_sums, token_sums
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.tasks.interface import Batch, LossSums
from transformer_jax.tokenization import Frame, Tokenizers


def text_frame(body: Any, tokenizers: Tokenizers) -> Frame:
    """What stands around a text, or a pair of texts, that this model reads alone."""
    specials = tokenizers.specials("text")
    return specials.encoder if isinstance(body, EncoderOnly) else specials.decoder


def batch_shapes(lengths: Mapping[str, int], rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The arrays of a packed batch."""
    return {
        name: jax.ShapeDtypeStruct((rows, length), jnp.int32)
        for feature, length in lengths.items()
        for name in (feature, f"{feature}_segment_ids", f"{feature}_positions")
    }


def row_inputs(batch: Batch, feature: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tokens, positions and segment ids of a feature, int32 [B, T] each, as models take them."""
    return batch[feature], batch[f"{feature}_positions"], batch[f"{feature}_segment_ids"]


def shift_right(target: jax.Array, positions: jax.Array, start: int) -> jax.Array:
    """The decoder's inputs [B, T]: `start` where a sentence starts, elsewhere the token before."""
    return jnp.where(positions == 0, start, jnp.roll(target, 1, axis=1))


def packed_loss(
    batch: Batch, read: Sequence[str], found: TokenLosses, counted: jax.Array
) -> LossSums:
    """Losses summed over the predictions that count, and what metrics are made of.

    Args:
      batch: packed rows.
      read: the features whose tokens the model reads.
      found: losses of the predictions, [B, M] each.
      counted: bool [B, M], False where there is nothing to predict.
    """
    weights = counted.astype(jnp.float32)
    sums = token_sums(found, weights) | slot_sums(batch, read)
    return (found.losses * weights).sum(), weights.sum(), sums


def row_scores(found: TokenLosses, counted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log P [B] in nats of the predictions [B, M] of each row that count, and whether all of them
    are the likeliest."""
    return -(found.nll * counted).sum(axis=1), (found.correct | ~counted).all(axis=1)
