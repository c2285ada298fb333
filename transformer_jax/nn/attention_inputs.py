"""What travels together into attention.

B batch, T queries, S keys, H heads, G heads of keys and values, K key size of a head, V value size
of a head.
"""

from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.nn.masks import look_ahead_mask, segment_mask


class Segments(struct.PyTreeNode):
    """What the mask of packed rows was made from, for kernels that mask by themselves.

    Attributes:
      query: [B, T], the segment ids of the queries; 0 is padding.
      key: [B, S], of the keys. A query sees the keys of its own segment.
      causal: a query sees none after itself.
    """

    query: Int[Array, "B T"]
    key: Int[Array, "B S"]
    causal: bool = struct.field(pytree_node=False, default=False)

    def mask(self) -> Bool[Array, "B 1 T S"]:
        """True where a query sees a key."""
        mask = segment_mask(self.query, self.key)
        return mask & look_ahead_mask(self.query.shape[1]) if self.causal else mask


class AttentionInputs(struct.PyTreeNode):
    """Queries, and the keys and values that they attend to.

    Attributes:
      query: [B, T, H, K].
      key: [B, S, G, K]; G divides H, and a head of keys serves H / G neighboring heads of queries.
      value: [B, S, G, V].
      mask: broadcasts to [B, H, T, S]; False where a query does not see a key.
      query_positions: [B, T]; None where positions mean nothing, between decoder and encoder.
      key_positions: [B, S], likewise.
      segments: from which `mask` was made; None where it was made otherwise, as by a cache.
    """

    query: Float[Array, "B T H K"]
    key: Float[Array, "B S G K"]
    value: Float[Array, "B S G V"]
    mask: Bool[Array, "#B #H #T #S"]
    query_positions: Int[Array, "B T"] | None = None
    key_positions: Int[Array, "B S"] | None = None
    segments: Segments | None = None

    @property
    def distance(self) -> Int[Array, "B T S"]:
        """Key position - query position; below 0 where a query looks back."""
        assert self.query_positions is not None and self.key_positions is not None
        return self.key_positions[:, None, :] - self.query_positions[:, :, None]
