"""Attention masks: True where a query may look at a key.

B batch, T queries, S keys. Every mask is a bool that broadcasts to [B, 1, T, S], the 1 standing
for all heads; masks combine with `&`. Segment ids number the sentences packed into a row from 1; 0
is padding.
"""

import jax
import jax.numpy as jnp


def padding_mask(segment_ids: jax.Array) -> jax.Array:
    """[B, S] segment ids -> [B, 1, 1, S]: no query looks at padding."""
    return (segment_ids > 0)[:, None, None, :]


def segment_mask(query_segment_ids: jax.Array, key_segment_ids: jax.Array) -> jax.Array:
    """[B, T], [B, S] -> [B, 1, T, S]: a query looks at its own sentence of a packed row."""
    same = query_segment_ids[:, :, None] == key_segment_ids[:, None, :]
    return same[:, None] & padding_mask(key_segment_ids)


def look_ahead_mask(length: int) -> jax.Array:
    """[1, 1, T, T]: position i looks at positions up to i (section 3.2.3)."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def window_mask(query_positions: jax.Array, key_positions: jax.Array, size: int) -> jax.Array:
    """[B, T], [B, S] -> [B, 1, T, S]: a query looks at keys less than `size` positions away."""
    distance = key_positions[:, None, :] - query_positions[:, :, None]
    return (jnp.abs(distance) < size)[:, None]
