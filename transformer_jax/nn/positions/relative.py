"""Vectors for distances, which meet the content of queries and keys.

A product is made once for each of R distances, then spread over the keys: no vector is ever laid
out for each pair of a query and a key. B batch, T queries, S keys, H heads, G heads of keys, D
model, K key size of a head, V value size of a head.
"""

import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.heads import head_products
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.positions.base import Positions
from transformer_jax.nn.products import einsum, product_dtype


class DistanceTables(nn.Module):
    """A layer's vectors for keys and values at the distances -k to k, which its heads share."""

    config: TransformerConfig

    def setup(self):
        c = self.config
        self.clip = c.max_distance or 16
        init = nn.initializers.normal(c.embedding_std)
        self.keys = self.param("keys", init, (2 * self.clip + 1, c.d_k))
        self.values = self.param("values", init, (2 * self.clip + 1, c.d_v))


class RelativePositions(Positions):
    """Relative position representations (Shaw et al. 2018): a query meets the sum of a key and a
    vector for its distance (equation 4), a head finds sums of values and such vectors (equation 3).

    Distances are clipped to `max_distance` k, 16 in the paper's base model.
    """

    layer_part = DistanceTables

    def logits(self, layer, query, key, query_positions, key_positions) -> jax.Array:
        dtype = product_dtype(self.config.dtype)
        query = query / math.sqrt(query.shape[-1])
        by_distance = einsum("bthk,rk->bhtr", query, layer.keys, dtype)
        return spread(by_distance, self._rows(layer, query_positions, key_positions))

    def values(self, layer, weights, query_positions, key_positions) -> jax.Array:
        dtype = product_dtype(self.config.dtype)
        rows = self._rows(layer, query_positions, key_positions)
        by_distance = gathered(weights, rows, len(layer.values))
        return einsum("bhtr,rv->bthv", by_distance, layer.values, dtype)

    def _rows(self, layer, query_positions, key_positions):
        """The row of the tables for each query and key: [B, T, S]."""
        distance = key_positions[:, None, :] - query_positions[:, :, None]
        return jnp.clip(distance, -layer.clip, layer.clip) + layer.clip


class DistanceProjections(nn.Module):
    """A layer's queries and keys of the distance vectors: [R, D] -> [R, H, K] and [R, G, K]."""

    config: TransformerConfig

    def setup(self):
        c = self.config
        parts = (False, product_dtype(c.dtype), c.kernel_std)
        self.query = Linear((c.d_model,), (c.num_heads, c.d_k), *parts)
        self.key = Linear((c.d_model,), (c.key_value_heads, c.d_k), *parts)

    def __call__(self, vectors: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.query(vectors), self.key(vectors)


class DisentangledPositions(Positions):
    """DeBERTa's attention (He et al. 2021, equation 4): to the product of contents come those of a
    query's content with a key's distance, and of a query's distance with a key's content.

    The layers of a stack share 2k vectors for distances, clipped to `max_distance` k, 512 in the
    paper, and project them each by matrices of its own. Of three terms, the scale is
    1 / sqrt(3 d_k).
    """

    layer_part = DistanceProjections

    def setup(self):
        self.clip = self.config.max_distance or 512
        init = nn.initializers.normal(self.config.embedding_std)
        self.table = self.param("table", init, (2 * self.clip, self.config.d_model))

    def rotate(
        self, query: jax.Array, key: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return query / math.sqrt(3), key

    def logits(self, layer, query, key, query_positions, key_positions) -> jax.Array:
        reach = min(self.clip, key.shape[1])  # no two positions of a row are farther apart
        vectors = self.table[self.clip - reach : self.clip + reach]
        distance_query, distance_key = layer(vectors)
        distance = query_positions[:, :, None] - key_positions[:, None, :]
        rows = jnp.clip(distance, -reach, reach - 1) + reach
        backward_rows = jnp.clip(-distance, -reach, reach - 1) + reach
        dtype, scale = product_dtype(self.config.dtype), math.sqrt(query.shape[-1])
        to_distance = _products(query / scale, distance_key, dtype)
        from_distance = _products_of_keys(key, distance_query / (math.sqrt(3) * scale), dtype)
        return spread(to_distance, rows) + jnp.swapaxes(
            spread(from_distance, jnp.swapaxes(backward_rows, 1, 2)), 2, 3
        )


def _products(query, distance_key, dtype):
    """[B, T, H, K], [R, G, K] -> [B, H, T, R]."""
    b, t, h, k = query.shape
    flat = head_products(query.reshape(1, b * t, h, k), distance_key[None], dtype)
    return jnp.swapaxes(flat.reshape(h, b, t, -1), 0, 1)


def _products_of_keys(key, distance_query, dtype):
    """[B, S, G, K], [R, H, K] -> [B, H, S, R]."""
    b, s, g, k = key.shape
    flat = head_products(distance_query[None], key.reshape(1, b * s, g, k), dtype)
    return flat[0].reshape(flat.shape[1], -1, b, s).transpose(2, 0, 3, 1)


def spread(by_distance: jax.Array, rows: jax.Array) -> jax.Array:
    """For each query and key what stands at its row: [B, H, T, R], [B, T, S] -> [B, H, T, S]."""
    take = jax.vmap(jax.vmap(lambda values, row: values[row]))  # all heads of a row at once
    return jnp.moveaxis(take(jnp.moveaxis(by_distance, 1, -1), rows), -1, 1)


def gathered(weights: jax.Array, rows: jax.Array, num_rows: int) -> jax.Array:
    """The weights of each row together: [B, H, T, S], [B, T, S] -> [B, H, T, R]."""
    total = jax.vmap(jax.vmap(partial(jax.ops.segment_sum, num_segments=num_rows)))
    return jnp.moveaxis(total(jnp.moveaxis(weights, 1, -1), rows), -1, 1)
