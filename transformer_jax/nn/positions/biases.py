"""Biases of the attention logits that depend on distances alone.

B batch, T queries, S keys, H heads. A distance is key position - query position.
"""

import math

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.nn.positions.base import PositionEncoding


class LinearBiases(PositionEncoding):
    """ALiBi (Press et al. 2022): a logit falls by a fixed slope of its head for each position
    between query and key, in either direction."""

    def bias(self, distance: Int[Array, "B T S"]) -> Float[Array, "B H T S"]:
        slope = jnp.array(slopes(self.config.num_heads))
        return -slope[:, None, None] * jnp.abs(distance)[:, None]


def slopes(num_heads: int) -> list[float]:
    """2^(-8 / H), 2^(-16 / H), ..., 2^-8 for H heads, H a power of 2.

    For other H, those of the power below H, then every other one of those of the power above.
    """
    below = 2 ** (num_heads.bit_length() - 1)
    between = [2 ** (-4 * i / below) for i in range(1, 2 * (num_heads - below), 2)]
    return [2 ** (-8 * i / below) for i in range(1, below + 1)] + between


class T5Buckets(PositionEncoding):
    """T5's biases (Raffel et al. 2020): a learned one for each head and each of 32 buckets of
    distances, shared by the layers of a stack.

    Distances from `max_distance` on, 128 in T5, share the last bucket. Logits keep the scale
    1 / sqrt(d_k), which T5 leaves to its initial values.
    """

    reads = ("model.max_distance",)
    num_buckets = 32

    def setup(self) -> None:
        shape = (self.num_buckets, self.config.num_heads)
        init = nn.initializers.normal(self.config.embedding_std)
        self.bucket_biases = self.param("bucket_biases", init, shape)
        self.max_distance = self.config.max_distance or 128
        least = self.num_buckets // (2 if self.causal else 4) + 1
        if self.max_distance < least:
            raise ValueError(
                f"max_distance is {self.max_distance}; positions 't5' need at least {least}"
            )

    def bias(self, distance: Int[Array, "B T S"]) -> Float[Array, "B H T S"]:
        index = buckets(distance, self.causal, self.num_buckets, self.max_distance)
        return jnp.moveaxis(jnp.take(self.bucket_biases, index, axis=0), -1, 1)


def buckets(
    distance: Int[Array, "*shape"], causal: bool, num_buckets: int = 32, max_distance: int = 128
) -> Int[Array, "*shape"]:
    """The bucket of each distance.

    Unless `causal`, the second half of the buckets is for keys after the query. Half of the buckets
    of a direction hold one distance each; the other half grow geometrically up to `max_distance`.
    """
    side = num_buckets if causal else num_buckets // 2
    ahead = jnp.where(distance > 0, num_buckets - side, 0)
    distance = jnp.maximum(-distance, 0) if causal else jnp.abs(distance)
    exact = side // 2
    growth = jnp.log(jnp.maximum(distance, exact) / exact) / math.log(max_distance / exact)
    far = exact + (growth * (side - exact)).astype(jnp.int32)
    return ahead + jnp.where(distance < exact, distance, jnp.minimum(far, side - 1))
