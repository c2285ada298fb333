# SPDX-License-Identifier: Apache-2.0
"""Biases of attention logits that depend only on the distance of query and key.

B batch, T queries, S keys, H heads. A distance is key position - query position.
"""

import math

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.nn.positions.base import PositionEncoding


class LinearBiases(PositionEncoding):
    """ALiBi (Press et al. 2022): logits fall linearly with the distance in either direction, with a
    fixed slope for each head."""

    def bias(self, distance: Int[Array, "B T S"]) -> Float[Array, "B H T S"]:
        slope = jnp.array(alibi_slopes(self.config.num_heads))
        return -slope[:, None, None] * jnp.abs(distance)[:, None]


def alibi_slopes(num_heads: int) -> list[float]:
    """Slopes 2^(-8 / H), 2^(-16 / H), ..., 2^-8 of H heads, if H is a power of 2.

    Other H get the slopes of the next lower power of 2, then every other slope of the next higher.
    """
    below = 2 ** (num_heads.bit_length() - 1)
    between = [2 ** (-4 * i / below) for i in range(1, 2 * (num_heads - below), 2)]
    return [2 ** (-8 * i / below) for i in range(1, below + 1)] + between


class T5Buckets(PositionEncoding):
    """T5's biases (Raffel et al. 2020): a learned bias for each head and each of `num_buckets`
    buckets of distances, shared by the layers of a stack.

    Distances of `max_distance` (128 in T5) and more share the last bucket. T5 itself has an
    `attention_scale` of 1.
    """

    reads = ("model.max_distance", "model.num_buckets")

    def setup(self) -> None:
        c = self.config
        init = nn.initializers.normal(c.embedding_std)
        self.bucket_biases = self.param("bucket_biases", init, (c.num_buckets, c.num_heads))
        self.max_distance = c.max_distance or 128
        least = c.num_buckets // (2 if self.causal else 4) + 1
        if self.max_distance < least:
            raise ValueError(
                f"max_distance is {self.max_distance}; positions 't5' need at least {least}"
            )

    def bias(self, distance: Int[Array, "B T S"]) -> Float[Array, "B H T S"]:
        reach = self.max_distance
        index = t5_buckets(reach, self.causal, self.config.num_buckets, reach)
        bias_of_distance = jnp.take(self.bucket_biases, index, axis=0)  # [2 reach + 1, H]
        rows = jnp.clip(distance, -reach, reach) + reach
        return jnp.moveaxis(jnp.take(bias_of_distance, rows, axis=0), -1, 1)


def t5_buckets(
    reach: int, causal: bool, num_buckets: int = 32, max_distance: int = 128
) -> Int[Array | np.ndarray, " R"]:
    """Bucket of each distance from -reach to reach.

    Half of the buckets of a direction hold one distance each; the other half grow geometrically up
    to `max_distance`. Unless `causal`, the second half of all buckets is for keys after the query.
    Computed in NumPy, as the logarithm of a device may round a distance into the lower bucket.
    """
    distance = np.arange(-reach, reach + 1)
    side = num_buckets if causal else num_buckets // 2
    ahead = 0 if causal else np.where(distance > 0, side, 0)
    distance = np.maximum(-distance, 0) if causal else np.abs(distance)
    exact = side // 2
    ratio = np.maximum(distance, exact).astype(np.float32) / np.float32(exact)
    growth = np.log(ratio) / np.float32(math.log(max_distance / exact))
    far = exact + (growth * np.float32(side - exact)).astype(int)
    return ahead + np.where(distance < exact, distance, np.minimum(far, side - 1))
