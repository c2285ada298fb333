# SPDX-License-Identifier: Apache-2.0
"""Relative positions: vectors for distances, multiplied with the content of queries and keys.

A product is computed once for each of R distances and then looked up for each key, so that no
vector is ever stored for each pair of a query and a key.

B batch, T queries, S keys, H heads, G heads of keys, D model, K key size of a head, V value size of
a head.
"""

import math
from functools import partial
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from transformer_jax.nn.attention_inputs import AttentionInputs
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.ops import einsum, head_products, product_dtype
from transformer_jax.nn.positions.base import PositionEncoding


class DistanceTables(nn.Module):
    """Vectors of a layer for keys and values at the distances -k to k, shared by its heads."""

    config: TransformerConfig

    def setup(self) -> None:
        c = self.config
        self.clip = c.max_distance or 16
        init = nn.initializers.normal(c.embedding_std)
        self.keys = self.param("keys", init, (2 * self.clip + 1, c.d_k))
        self.values = self.param("values", init, (2 * self.clip + 1, c.d_v))

    def rows(self, distance: Int[Array, "B T S"]) -> Int[Array, "B T S"]:
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

    def logit_bias(
        self, inputs: AttentionInputs, layer_part: DistanceTables
    ) -> Float[Array, "B H T S"]:
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

    def rotate(
        self,
        query: Float[Array, "B T H K"],
        key: Float[Array, "B T G K"],
        positions: Int[Array, "B T"],
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B T G K"]]:
        return query / math.sqrt(3), key

    def logit_bias(
        self, inputs: AttentionInputs, layer_part: DistanceProjections
    ) -> Float[Array, "B H T S"]:
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
        distance_scale = self.config.query_scale / (math.sqrt(3) * scale)
        to_distance = _query_products(query / scale, distance_key, dtype)
        from_distance = _key_products(key, distance_query * distance_scale, dtype)
        return take_by_distance(to_distance, rows) + jnp.swapaxes(
            take_by_distance(from_distance, jnp.swapaxes(key_rows, 1, 2)), 2, 3
        )


class DisentangledPositionsOfQueries(DisentangledPositions):
    """DeBERTa's attention with delta(i, j) in the third term too, as Hugging Face computes it."""

    key_distance = False


def _query_products(
    query: Float[Array, "B T H K"], distance_key: Float[Array, "R G K"], dtype: DTypeLike
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


def take_by_distance(
    by_distance: Float[Array, "B H T R"], rows: Int[Array, "B T S"]
) -> Float[Array, "B H T S"]:
    """Looks up the value of each query and key in its row of the distances."""
    take = jax.vmap(jax.vmap(lambda values, row: values[row]))  # all heads of a row at once
    return jnp.moveaxis(take(jnp.moveaxis(by_distance, 1, -1), rows), -1, 1)


def sum_by_distance(
    weights: Float[Array, "B H T S"], rows: Int[Array, "B T S"], num_rows: int
) -> Float[Array, "B H T R"]:
    """Sums the weights of each query over all keys with the same row."""
    total = jax.vmap(jax.vmap(partial(jax.ops.segment_sum, num_segments=num_rows)))
    return jnp.moveaxis(total(jnp.moveaxis(weights, 1, -1), rows), -1, 1)
