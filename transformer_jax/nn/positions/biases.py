"""Biases of the attention logits that depend on distances alone.

B batch, T queries, S keys, H heads.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.nn.positions.base import Positions


class LinearBiases(Positions):
    """ALiBi (Press et al. 2022): a logit falls by a fixed slope of its head for each position
    between query and key, to either side."""

    def bias(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        distance = jnp.abs(key_positions[:, None, :] - query_positions[:, :, None])
        return -jnp.array(slopes(self.config.num_heads))[:, None, None] * distance[:, None]


def slopes(num_heads: int) -> list[float]:
    """2^(-8 / H), 2^(-16 / H), ..., 2^-8 for H heads, H a power of 2.

    For other H, those of the power below H, then every other one of those of the power above.
    """
    below = 2 ** (num_heads.bit_length() - 1)
    between = [2 ** (-4 * i / below) for i in range(1, 2 * (num_heads - below), 2)]
    return [2 ** (-8 * i / below) for i in range(1, below + 1)] + between


class T5Buckets(Positions):
    """T5's biases (Raffel et al. 2020): a learned one for each head and each of 32 buckets of
    distances, shared by the layers of a stack.

    Distances from `max_distance` on, 128 in T5, share the last bucket. Logits keep the scale
    1 / sqrt(d_k), which T5 leaves to its initial values.
    """

    num_buckets = 32

    def setup(self):
        shape = (self.num_buckets, self.config.num_heads)
        init = nn.initializers.normal(self.config.embedding_std)
        self.bucket_biases = self.param("bucket_biases", init, shape)
        self.max_distance = self.config.max_distance or 128
        least = self.num_buckets // (2 if self.causal else 4) + 1
        if self.max_distance < least:
            raise ValueError(
                f"max_distance is {self.max_distance}; positions 't5' ask for {least} at least"
            )

    def bias(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        distance = key_positions[:, None, :] - query_positions[:, :, None]
        index = buckets(distance, self.causal, self.num_buckets, self.max_distance)
        return jnp.moveaxis(jnp.take(self.bucket_biases, index, axis=0), -1, 1)


def buckets(
    distance: jax.Array, causal: bool, num_buckets: int = 32, max_distance: int = 128
) -> jax.Array:
    """The bucket of each distance, key position - query position: int32 of any shape.

    Without `causal`, the second half of the buckets is for keys behind the query. Half of a side's
    buckets hold one distance each; the other half grow geometrically up to `max_distance`.
    """
    if causal:
        side, ahead, distance = num_buckets, 0, jnp.maximum(-distance, 0)
    else:
        side = num_buckets // 2
        ahead, distance = jnp.where(distance > 0, side, 0), jnp.abs(distance)
    exact = side // 2
    growth = jnp.log(jnp.maximum(distance, exact) / exact) / math.log(max_distance / exact)
    far = exact + (growth * (side - exact)).astype(jnp.int32)
    return ahead + jnp.where(distance < exact, distance, jnp.minimum(far, side - 1))
