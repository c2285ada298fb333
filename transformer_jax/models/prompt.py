"""Prompts of unequal length, decoded in one batch."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.nn.cache import KVCache


def after_prompts(
    x: Float[Array, "B P D"], lengths: Int[Array, " B"], caches: tuple[KVCache, ...]
) -> tuple[Float[Array, "B 1 D"], tuple[KVCache, ...]]:
    """The features of each prompt's last token, and caches that end there."""
    last = jnp.take_along_axis(x, lengths[:, None, None] - 1, axis=1)
    return last, tuple(cache.replace(length=lengths) for cache in caches)
