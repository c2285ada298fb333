"""Sums over tokens that the device makes, and the metrics read from them.

Everything is a sum until the very end, so that batches, micro-batches and devices of unequal
padding can be added up and divided once.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.losses import cross_entropy

Sums = Mapping[str, jax.Array]


def token_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
    """What the metrics of a batch are made of, each a scalar.

    Args:
      logits: [B, T, V].
      labels: int32 [B, T].
      weights: [B, T], 0 where a position does not count.

    Returns:
      "tokens" (total weight), "nll" (negative log-likelihood, nats) and "correct" (labels ranked
      first).
    """
    logits = jax.lax.stop_gradient(logits)
    of_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return {
        "tokens": weights.sum(),
        "nll": (cross_entropy(logits, labels) * weights).sum(),
        "correct": ((of_label >= logits.max(axis=-1)) * weights).sum(),
    }


def slot_sums(batch: Mapping[str, jax.Array], features: Sequence[str]) -> dict[str, jax.Array]:
    """ "filled", the slots of a packed batch's features that hold a token, and "slots", all."""
    return {
        "filled": sum((batch[f"{feature}_segment_ids"] > 0).sum() for feature in features),
        "slots": jnp.float32(sum(batch[feature].size for feature in features)),
    }


def add_sums(sums: Sums, more: Sums) -> dict[str, np.ndarray]:
    """Adds figure by figure, on the host in double precision; of replicas, each by itself."""
    return {name: np.float64(value) + sums.get(name, 0.0) for name, value in more.items()}


def metrics_of(sums: Sums) -> dict[str, np.ndarray]:
    """From sums, numbers or arrays [R] of replicas, to what is reported.

    Returns:
      "loss" (nats a token, smoothed as in training), "perplexity" (of the unsmoothed likelihood),
      "accuracy" and "padding" (share of the batch's slots that hold no token).
    """
    tokens = sums["tokens"]
    return {
        "loss": sums["loss"] / tokens,
        "perplexity": np.exp(np.minimum(sums["nll"] / tokens, 700.0)),
        "accuracy": sums["correct"] / tokens,
        "padding": 1.0 - sums["filled"] / sums["slots"],
    }
