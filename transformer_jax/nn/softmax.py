"""The softmax of attention (equation 1), with a mask, and a cap for logits.

S keys.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


@jax.custom_jvp
def softmax(
    logits: Float[Array, "*B S"], mask: Bool[Array, "..."] | None = None
) -> Float[Array, "*B S"]:
    """The softmax over the elements of the last axis where `mask` is True; the others are 0, and so
    is a row without any. Its derivatives need only the result.

    With a mask `jax.nn.softmax` takes twice as long on a CPU (experiments/results/speed.md).
    """
    if mask is not None:
        logits = jnp.where(mask, logits, -jnp.inf)
    limits = jnp.finfo(logits.dtype)
    exponentials = jnp.exp(logits - jnp.maximum(logits.max(-1, keepdims=True), limits.min))
    return exponentials / jnp.maximum(exponentials.sum(-1, keepdims=True), limits.tiny)


@softmax.defjvp
def _softmax_tangent(
    primals: tuple[Array, Array | None], tangents: tuple[Array, Any]
) -> tuple[Array, Array]:
    weights, change = softmax(*primals), tangents[0]
    return weights, weights * (change - (weights * change).sum(-1, keepdims=True))


def capped(logits: Float[Array, "*B S"], cap: float | None) -> Float[Array, "*B S"]:
    """c tanh(x / c) of each logit x, which stays below c (Gemma 2, 2024); with None, x."""
    return logits if cap is None else cap * jnp.tanh(logits / cap)
