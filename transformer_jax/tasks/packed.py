"""What the losses of tasks share: the inputs of packed rows, and sums over what counts.

B batch, T slots, M predictions of a row, V classes (a vocabulary, labels or tags).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from transformer_jax.losses import cross_entropy
from transformer_jax.metrics import slot_sums, token_sums
from transformer_jax.tasks.interface import Batch, LossSums


def row_inputs(batch: Batch, feature: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tokens, positions and segment ids of a feature, int32 [B, T] each, as models take them."""
    return batch[feature], batch[f"{feature}_positions"], batch[f"{feature}_segment_ids"]


def packed_loss(
    batch: Batch,
    read: Sequence[str],
    logits: jax.Array,
    labels: jax.Array,
    counted: jax.Array,
    label_smoothing: float = 0.0,
) -> LossSums:
    """Cross-entropy summed over the predictions that count, and what metrics are made of.

    Args:
      batch: packed rows.
      read: the features whose tokens the model reads.
      logits: float32 [B, M, V].
      labels: int32 [B, M].
      counted: bool [B, M], False where there is nothing to predict.
      label_smoothing: eps (section 5.4).
    """
    weights = counted.astype(jnp.float32)
    losses = cross_entropy(logits, labels, label_smoothing)
    sums = token_sums(logits, labels, weights) | slot_sums(batch, read)
    return (losses * weights).sum(), weights.sum(), sums
