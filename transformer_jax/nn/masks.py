"""Attention masks: True where a query sees a key.

B batch, T queries, S keys. Every mask broadcasts to [B, 1, T, S], where the 1 stands for all heads;
masks combine with `&`. Segment ids number the sentences packed into a row from 1; 0 is padding.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def padding_mask(segment_ids: Int[Array, "B S"]) -> Bool[Array, "B 1 1 S"]:
    """No query sees padding."""
    return (segment_ids > 0)[:, None, None, :]


def segment_mask(
    query_segment_ids: Int[Array, "B T"], key_segment_ids: Int[Array, "B S"]
) -> Bool[Array, "B 1 T S"]:
    """A query sees only its own sentence of a packed row."""
    same = query_segment_ids[:, :, None] == key_segment_ids[:, None, :]
    return same[:, None] & padding_mask(key_segment_ids)


def look_ahead_mask(length: int) -> Bool[Array, "1 1 T T"]:
    """Position i sees positions up to i (section 3.2.3)."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def window_mask(distance: Int[Array, "B T S"], size: int) -> Bool[Array, "B 1 T S"]:
    """A query sees keys less than `size` positions away."""
    return (jnp.abs(distance) < size)[:, None]
