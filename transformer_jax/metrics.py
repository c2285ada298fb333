# SPDX-License-Identifier: Apache-2.0
"""Sums over tokens, computed on the device, and metrics computed from them on the host.

Values are summed until the end and divided once, so that batches, micro-batches and devices with
unequal padding add up correctly.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Num

from transformer_jax.nn.auxiliary import COUNT, TOTAL

LossSums = tuple[jax.Array, jax.Array, dict[str, jax.Array]]
"""(loss, weight, other sums), each summed over a packed batch: what a task's loss returns. The
other sums must have "tokens" (number of predictions, which divides the reported loss), "filled" and
"slots" (`padding_sums`). With "nll" and "correct", perplexity and accuracy are reported too."""

HostSums = dict[str, Any]
"""Sums by name, on the host: numbers, or arrays [R] of R replicas."""

MEANS = ("margin", "chosen_reward", "rejected_reward")
"""Names of sums whose means are reported (`tasks.preference`)."""


def padding_sums(
    batch: Mapping[str, Int[Array | np.ndarray, "B _"]], features: Sequence[str]
) -> dict[str, Num[Array, ""]]:
    """Counts the slots of these features of a packed batch: "filled" (with a token) and "slots"
    (all)."""
    filled = [(batch[f"{feature}_segment_ids"] > 0).sum() for feature in features]
    return {
        "filled": jnp.asarray(sum(filled)),
        "slots": jnp.float32(sum(batch[feature].size for feature in features)),
    }


def add_sums(sums: Mapping[str, Any], more: Mapping[str, Any]) -> HostSums:
    """Adds sums by name in double precision; arrays of replicas are added elementwise."""
    return {name: np.float64(value) + sums.get(name, 0.0) for name, value in more.items()}


def compute_metrics(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Computes metrics from sums: numbers, or arrays [R] of R replicas.

    Returns:
      "train_loss", which training minimizes, and "loss", both in nats per token: if there is a sum
      "nll", the loss is the cross-entropy of the data without smoothing or other terms, beside its
      "perplexity"; otherwise both are the same. "accuracy" if there is a sum "correct", the means
      of `MEANS` that have sums, "restored" (of the tokens chosen to be masked, the share that was
      not, since their rows had too many) if there is such a sum, the means of what modules added
      ("aux/NAME"), and "padding" (share of slots without a token).
    """
    tokens = sums["tokens"]
    metrics = {"loss": sums.get("nll", sums["loss"]) / tokens}
    metrics["train_loss"] = sums["loss"] / tokens
    if "nll" in sums:
        metrics["perplexity"] = np.exp(np.minimum(sums["nll"] / tokens, 700.0))  # below inf
    if "correct" in sums:
        metrics["accuracy"] = sums["correct"] / tokens
    metrics |= {name: sums[name] / tokens for name in MEANS if name in sums}
    if "restored" in sums:
        metrics["restored"] = sums["restored"] / (tokens + sums["restored"])
    added = [name.removeprefix(COUNT) for name in sums if name.startswith(COUNT)]
    metrics |= {TOTAL + name: sums[TOTAL + name] / sums[COUNT + name] for name in added}
    return metrics | {"padding": 1.0 - sums["filled"] / sums["slots"]}
