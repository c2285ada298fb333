# SPDX-License-Identifier: Apache-2.0
"""Queries, keys and values of one attention, with their mask and positions.

B batch, T queries, S keys, H heads, G heads of keys and values, K key size of a head, V value size
of a head.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.nn.masks import PerToken, Segments, segment_mask, window_mask

Heads = Float[Array, "B T H V"]
"""Outputs of the heads."""


class AttentionInputs(struct.PyTreeNode):
    """Queries, and the keys and values that they attend to.

    Attributes:
      key, value: G divides H; a head of them serves H / G neighboring heads of queries.
      mask: broadcasts to [B, H, T, S]; False hides a key from a query. None where devices divide
        the tokens (`nn.ring_attention`), whose order is then any.
      query_positions, key_positions: None in cross-attention, where distances have no meaning.
      segments: segment ids that `mask` was made from; None if it was made otherwise, as by a cache.
      window: a query sees only keys less than this many positions away; None: no limit.
      past: mask of all keys of the query's sentence while decoding, those after it too; None
        otherwise.
      per_key: further values of each key, by name (`MultiHeadAttention.per_key`).
    """

    query: Float[Array, "B T H K"]
    key: Float[Array, "B S G K"]
    value: Float[Array, "B S G V"]
    mask: Bool[Array, "#B #H #T #S"] | None
    query_positions: PerToken | None = None
    key_positions: Int[Array, "B S"] | None = None
    segments: Segments | None = None
    window: int | None = struct.field(pytree_node=False, default=None)
    past: Bool[Array, "#B 1 #T #S"] | None = None
    per_key: Mapping[str, Float[Array, "B S ..."]] = struct.field(default_factory=dict)

    @property
    def distance(self) -> Int[Array, "B T S"]:
        """Key position - query position; negative for keys before the query."""
        assert self.query_positions is not None and self.key_positions is not None
        return self.key_positions[:, None, :] - self.query_positions[:, :, None]

    @property
    def sentence_mask(self) -> Bool[Array, "#B 1 #T #S"]:
        """Mask of the keys in the query's sentence, those after the query too. While prompts of
        unequal lengths are read, it has their padding."""
        if self.past is not None:
            return self.past
        assert self.segments is not None
        return segment_mask(self.segments.query, self.segments.key)

    def and_those_of(self, other: "AttentionInputs") -> "AttentionInputs":
        """The queries of this attention, which see its keys and those of another, too. Each row of
        the other serves equally many rows: the samples of a sentence."""
        assert other.mask is not None
        samples = len(self.key) // len(other.key)
        other_key, other_value, other_mask = (
            jnp.repeat(x, samples, axis=0) for x in (other.key, other.value, other.mask)
        )
        masks = [self.windowed_mask, other_mask]
        shape = jnp.broadcast_shapes(*(mask.shape[:-1] for mask in masks))
        masks = [jnp.broadcast_to(mask, (*shape, mask.shape[-1])) for mask in masks]
        key = jnp.concatenate([self.key, other_key.astype(self.key.dtype)], axis=1)
        value = jnp.concatenate([self.value, other_value.astype(self.value.dtype)], axis=1)
        mask = jnp.concatenate(masks, axis=-1)
        return AttentionInputs(self.query, key, value, mask, self.query_positions)

    @property
    def windowed_mask(self) -> Bool[Array, "#B #H #T #S"]:
        """`mask`, or that of segments and positions, restricted to the window if there is one."""
        mask = self.mask
        if mask is None:
            assert self.segments is not None
            mask = self.sentence_mask
            mask = mask & (self.distance <= 0)[:, None] if self.segments.causal else mask
        return mask if self.window is None else mask & window_mask(self.distance, self.window)
