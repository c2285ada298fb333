"""Sums over tokens, made on the device, and the metrics computed from them on the host.

Everything stays a sum until the end, so that batches, micro-batches and devices of unequal padding
add up, and one division gives the mean.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Num

from transformer_jax.losses import TokenLosses

HostSums = dict[str, Any]
"""Sums by name, on the host: numbers, or arrays [R] of R replicas."""

MEANS = ("margin", "chosen_reward", "rejected_reward")
"""Sums of a pair of answers, of which the mean is reported (`tasks.preference`)."""


def token_sums(
    found: TokenLosses, weights: Num[Array | np.ndarray, "*B"]
) -> dict[str, Num[Array, ""]]:
    """The sums that the metrics of a batch are computed from.

    Args:
      found: what the loss found of each position.
      weights: 0 where a position does not count.

    Returns:
      "tokens" (total weight), "nll" (negative log-likelihood, nats) and "correct" (labels that are
      the argmax).
    """
    return {
        "tokens": jnp.sum(weights),
        "nll": (found.nll * weights).sum(),
        "correct": (found.correct * weights).sum(),
    }


def slot_sums(
    batch: Mapping[str, Int[Array | np.ndarray, "B _"]], features: Sequence[str]
) -> dict[str, Num[Array, ""]]:
    """How full these features of a packed batch are.

    Returns:
      "filled" (slots that hold a token) and "slots" (all of them).
    """
    filled = [(batch[f"{feature}_segment_ids"] > 0).sum() for feature in features]
    return {
        "filled": jnp.asarray(sum(filled)),
        "slots": jnp.float32(sum(batch[feature].size for feature in features)),
    }


def add_sums(sums: Mapping[str, Any], more: Mapping[str, Any]) -> HostSums:
    """The sums of both, name by name, in double precision; of replicas, each by itself."""
    return {name: np.float64(value) + sums.get(name, 0.0) for name, value in more.items()}


def metrics_of(sums: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics that sums amount to, numbers or arrays [R] as the sums are.

    Returns:
      "loss" (nats a token, smoothed as in training), "perplexity" (of the unsmoothed likelihood)
      and "accuracy", where there are sums "nll" and "correct", the means of `MEANS` where there are
      such sums, and "padding" (share of the batch's slots that hold no token).
    """
    tokens = sums["tokens"]
    metrics = {"loss": sums["loss"] / tokens}
    if "nll" in sums:
        metrics["perplexity"] = np.exp(np.minimum(sums["nll"] / tokens, 700.0))
    if "correct" in sums:
        metrics["accuracy"] = sums["correct"] / tokens
    metrics |= {name: sums[name] / tokens for name in MEANS if name in sums}
    return metrics | {"padding": 1.0 - sums["filled"] / sums["slots"]}
