# SPDX-License-Identifier: Apache-2.0
"""Relative positions: biases of logits, and vectors multiplied with queries, keys and weights.

Products with vectors are computed once for each of R distances and then looked up for each key, so
that no vector is ever stored for each pair of a query and a key.

B batch, T queries, S keys, H heads, G heads of keys, D model, K key size of a head, V value size of
a head. A distance is key position - query position.
"""

import math
from functools import partial
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from transformer_jax.nn.attention_inputs import AttentionInputs
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.ops import einsum, head_products, product_dtype
from transformer_jax.nn.positions.base import (
    Biases,
    Distances,
    Keys,
    PositionEncoding,
    Positions,
    Queries,
)


class LinearBiases(PositionEncoding):
    """ALiBi (Press et al. 2022): logits fall linearly with the distance in either direction, with a
    fixed slope for each head."""

    def bias(self, distance: Distances) -> Biases:
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

    def bias(self, distance: Distances) -> Biases:
        reach = self.max_distance
        index = t5_buckets(reach, self.causal, self.config.num_buckets)
        bias_of_distance = jnp.take(self.bucket_biases, index, axis=0)  # [2 reach + 1, H]
        rows = jnp.clip(distance, -reach, reach) + reach
        return jnp.moveaxis(jnp.take(bias_of_distance, rows, axis=0), -1, 1)


def t5_buckets(max_distance: int, causal: bool, num_buckets: int) -> Int[Array | np.ndarray, " R"]:
    """Bucket of each distance from -max_distance to max_distance.

    Half of the buckets of a direction hold one distance each; the other half grow geometrically up
    to `max_distance`. Unless `causal`, the second half of all buckets is for keys after the query.
    Computed in NumPy, as the logarithm of a device may round a distance into the lower bucket.
    """
    distance = np.arange(-max_distance, max_distance + 1)
    side = num_buckets if causal else num_buckets // 2
    ahead = 0 if causal else np.where(distance > 0, side, 0)
    distance = np.maximum(-distance, 0) if causal else np.abs(distance)
    exact = side // 2
    ratio = np.maximum(distance, exact).astype(np.float32) / np.float32(exact)
    growth = np.log(ratio) / np.float32(math.log(max_distance / exact))
    far = exact + (growth * np.float32(side - exact)).astype(int)
    return ahead + np.where(distance < exact, distance, np.minimum(far, side - 1))


class DistanceTables(nn.Module):
    """Vectors of a layer for keys and values at the distances -k to k, shared by its heads."""

    config: TransformerConfig

    def setup(self) -> None:
        c = self.config
        self.clip = c.max_distance or 16
        init = nn.initializers.normal(c.embedding_std)
        self.keys = self.param("keys", init, (2 * self.clip + 1, c.d_k))
        self.values = self.param("values", init, (2 * self.clip + 1, c.d_v))

    def rows(self, distance: Distances) -> Int[Array, "B T S"]:
        """Row of the tables for each query and key."""
        return jnp.clip(distance, -self.clip, self.clip) + self.clip


class RelativePositions(PositionEncoding):
    """Relative position representations (Shaw et al. 2018).

    A query is multiplied with the sum of a key and a vector for its distance (equation 4), and a
    head sums up values plus such vectors (equation 3). Distances are clipped to `max_distance` k,
    16 in the paper's base model.
    """

    reads = ("model.max_distance",)
    layer_part = DistanceTables

    def logit_bias(self, inputs: AttentionInputs, layer_part: DistanceTables) -> Biases:
        query = inputs.query / math.sqrt(inputs.query.shape[-1])
        dtype = product_dtype(self.config.dtype)
        by_distance = einsum("bthk,rk->bhtr", query, layer_part.keys, dtype)
        return take_by_distance(by_distance, layer_part.rows(inputs.distance))

    def extra_values(
        self, weights: Float[Array, "B H T S"], inputs: AttentionInputs, layer_part: DistanceTables
    ) -> Float[Array, "B T H V"]:
        table = layer_part.values
        by_distance = sum_by_distance(weights, layer_part.rows(inputs.distance), len(table))
        return einsum("bhtr,rv->bthv", by_distance, table, product_dtype(self.config.dtype))


class DistanceProjections(nn.Module):
    """Projections of the distance vectors to queries and keys, one module for each layer."""

    config: TransformerConfig

    def setup(self) -> None:
        c = self.config
        self.query = Linear((c.d_model,), (c.num_heads, c.d_k), False, c, c.kernel_std)
        self.key = Linear((c.d_model,), (c.key_value_heads, c.d_k), False, c, c.kernel_std)

    def __call__(
        self, vectors: Float[Array, "R D"]
    ) -> tuple[Float[Array, "R H K"], Float[Array, "R G K"]]:
        return self.query(vectors), self.key(vectors)


class DisentangledPositions(PositionEncoding):
    """DeBERTa's disentangled attention (He et al. 2021, equation 4).

    Logits are the sum of three products: content with content, the query's content with the
    distance, and the distance with the key's content. Their scale is 1 / sqrt(3 d_k). The layers of
    a stack share 2k vectors for distances, clipped to `max_distance` k (512 in the paper); each
    layer has its own projections of them.

    Attributes:
      key_distance: the third term uses the distance from the key, delta(j, i), as in the paper;
        otherwise delta(i, j).
    """

    reads = ("model.max_distance",)
    layer_part = DistanceProjections
    key_distance: ClassVar[bool] = True

    def setup(self) -> None:
        self.clip = self.config.max_distance or 512
        init = nn.initializers.normal(self.config.embedding_std)
        self.table = self.param("table", init, (2 * self.clip, self.config.d_model))

    def rotate(self, query: Queries, key: Keys, positions: Positions) -> tuple[Queries, Keys]:
        return query / math.sqrt(3), key

    def logit_bias(self, inputs: AttentionInputs, layer_part: DistanceProjections) -> Biases:
        query = inputs.query
        key = inputs.key
        reach = min(self.clip, key.shape[1])  # no two positions of a row are farther apart
        vectors = self.table[self.clip - reach : self.clip + reach]
        distance_query, distance_key = layer_part(vectors)
        delta = -inputs.distance  # delta(i, j) of the paper; delta(j, i) is its negative
        key_delta = -delta if self.key_distance else delta
        rows, key_rows = (
            jnp.clip(distance, -reach, reach - 1) + reach for distance in (delta, key_delta)
        )
        dtype = product_dtype(self.config.dtype)
        scale = math.sqrt(query.shape[-1])
        distance_scale = layer_part.config.query_scale / (math.sqrt(3) * scale)
        to_distance = _query_products(query / scale, distance_key, dtype)
        from_distance = _key_products(key, distance_query * distance_scale, dtype)
        return take_by_distance(to_distance, rows) + jnp.swapaxes(
            take_by_distance(from_distance, jnp.swapaxes(key_rows, 1, 2)), 2, 3
        )


class DisentangledPositionsOfQueries(DisentangledPositions):
    """DeBERTa's attention with delta(i, j) in the third term too, as Hugging Face computes it."""

    key_distance = False


def _query_products(
    query: Queries, distance_key: Float[Array, "R G K"], dtype: DTypeLike
) -> Float[Array, "B H T R"]:
    b, t, h, k = query.shape
    flat = head_products(query.reshape(1, b * t, h, k), distance_key[None], dtype)
    return jnp.swapaxes(flat.reshape(h, b, t, -1), 0, 1)  # [B, H, T, R]


def _key_products(
    key: Float[Array, "B S G K"], distance_query: Float[Array, "R H K"], dtype: DTypeLike
) -> Float[Array, "B H S R"]:
    b, s, g, k = key.shape
    flat = head_products(distance_query[None], key.reshape(1, b * s, g, k), dtype)
    return flat[0].reshape(flat.shape[1], -1, b, s).transpose(2, 0, 3, 1)  # from [H, R, B, S]


def take_by_distance(by_distance: Float[Array, "B H T R"], rows: Int[Array, "B T S"]) -> Biases:
    """Looks up the value of each query and key in its row of the distances."""
    take = jax.vmap(jax.vmap(lambda values, row: values[row]))  # all heads of a row at once
    return jnp.moveaxis(take(jnp.moveaxis(by_distance, 1, -1), rows), -1, 1)


def sum_by_distance(
    weights: Float[Array, "B H T S"], rows: Int[Array, "B T S"], num_rows: int
) -> Float[Array, "B H T R"]:
    """Sums the weights of each query over all keys with the same row."""
    total = jax.vmap(jax.vmap(partial(jax.ops.segment_sum, num_segments=num_rows)))
    return jnp.moveaxis(total(jnp.moveaxis(weights, 1, -1), rows), -1, 1)
