"""Products of heads: of queries with keys, and of weights with values.

Queries have H heads; keys and values have G, which divides H: one for each (Vaswani et al. 2017),
one for a group of H / G neighbors (Ainslie et al. 2023) or one for all (Shazeer 2019). Heads that
share a key count as further queries of that key's head, so that no key is repeated in memory.

Operands are permuted to the cache's layout, so neither gradients nor cache need a transpose.

B batch, T queries, S keys, K key size of a head, V value size of a head.
"""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from transformer_jax.nn.products import dtype_for_rows, einsum


def head_products(
    query: Float[Array, "B T H K"], key: Float[Array, "B S G K"], dtype: DTypeLike
) -> Float[Array, "B H T S"]:
    """Q K^T of each head."""
    b, t, h, k = query.shape
    groups = key.shape[2]
    query = query.reshape(b, t, groups, h // groups, k).transpose(0, 3, 1, 2, 4)
    query = query.reshape(b, h // groups * t, groups, k)
    key = jnp.moveaxis(key, 1, 2)  # [B, G, S, K]
    dtype = dtype_for_rows(query.shape[1], dtype)
    return einsum("bthk,bhsk->bhts", query, key, dtype).reshape(b, h, t, -1)


def head_sums(
    weights: Float[Array, "B H T S"], value: Float[Array, "B S G V"], dtype: DTypeLike
) -> Float[Array, "B T H V"]:
    """The sums of values under weights, for each head."""
    b, h, t, s = weights.shape
    groups, v = value.shape[2:]
    weights = weights.reshape(b, groups, h // groups * t, s)
    value = jnp.moveaxis(value, 1, 2)  # [B, G, S, V]
    dtype = dtype_for_rows(weights.shape[2], dtype)
    sums = einsum("bhts,bhsv->bhtv", weights, value, dtype)
    sums = sums.reshape(b, groups, h // groups, t, v).transpose(0, 3, 1, 2, 4)
    return sums.reshape(b, t, h, v)
