# SPDX-License-Identifier: Apache-2.0
"""Attention masks: True where a query sees a key.

B batch, T queries, S keys. Every mask broadcasts to [B, 1, T, S], with axis 1 for the heads; masks
combine with `&`. Segment ids number the sentences packed into a row from 1; 0 is padding.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

PerToken = Int[Array, "B T"]
"""A number of each token, such as its position or the number of its sentence."""


def row_places(
    tokens: PerToken, positions: PerToken | None = None, segment_ids: PerToken | None = None
) -> tuple[PerToken, PerToken]:
    """Positions and segment ids of rows, each derived from the other if it is not given.

    With neither, each row is one text without padding.
    """
    if segment_ids is None:
        if positions is None:
            segment_ids = jnp.ones_like(tokens)
        else:
            segment_ids = jnp.cumsum(positions == 0, axis=1)
    if positions is None:
        positions = positions_in_segments(segment_ids)
    return positions, segment_ids


def first_tokens(segment_ids: PerToken) -> Bool[Array, "B T"]:
    """True at the first token of each sentence in packed rows, and at the first padding token."""
    before = jnp.pad(segment_ids[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    return segment_ids != before


def positions_in_segments(segment_ids: PerToken) -> PerToken:
    """Position of each token, from 0 in its sentence."""
    index = jnp.broadcast_to(jnp.arange(segment_ids.shape[1]), segment_ids.shape)
    first_indices = jnp.where(first_tokens(segment_ids), index, 0)
    return index - jax.lax.cummax(first_indices, axis=1)


def padding_mask(segment_ids: Int[Array, "B S"]) -> Bool[Array, "B 1 1 S"]:
    """Hides padding from every query."""
    return (segment_ids > 0)[:, None, None, :]


def segment_mask(
    query_segment_ids: PerToken, key_segment_ids: Int[Array, "B S"]
) -> Bool[Array, "B 1 T S"]:
    """Restricts each query to its own sentence of a packed row."""
    same = query_segment_ids[:, :, None] == key_segment_ids[:, None, :]
    return same[:, None] & padding_mask(key_segment_ids)


def look_ahead_mask(length: int) -> Bool[Array, "1 1 T T"]:
    """Restricts position i to positions up to i (section 3.2.3)."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def window_mask(distance: Int[Array, "B T S"], size: int) -> Bool[Array, "B 1 T S"]:
    """Restricts a query to keys less than `size` positions away (section 4)."""
    return (jnp.abs(distance) < size)[:, None]


class Segments(struct.PyTreeNode):
    """Segment ids of queries and keys: the mask of packed rows in the form that kernels take. If
    `causal`, a query sees no key after itself."""

    query: PerToken
    key: Int[Array, "B S"]
    causal: bool = struct.field(pytree_node=False, default=False)

    def mask(self) -> Bool[Array, "B 1 T S"]:
        mask = segment_mask(self.query, self.key)
        return mask & look_ahead_mask(self.query.shape[1]) if self.causal else mask
