"""What travels together into attention.

B batch, T queries, S keys, H heads, G heads of keys and values, K key size of a head, V value size
of a head.
"""

from flax import struct
from jaxtyping import Array, Bool, Float, Int


class AttentionInputs(struct.PyTreeNode):
    """Queries, and the keys and values that they attend to.

    Attributes:
      query: [B, T, H, K].
      key: [B, S, G, K]; G divides H, and a head of keys serves H / G neighboring heads of queries.
      value: [B, S, G, V].
      mask: broadcasts to [B, H, T, S]; False where a query does not see a key.
      query_positions: [B, T]; None where positions mean nothing, between decoder and encoder.
      key_positions: [B, S], likewise.
    """

    query: Float[Array, "B T H K"]
    key: Float[Array, "B S G K"]
    value: Float[Array, "B S G V"]
    mask: Bool[Array, "#B #H #T #S"]
    query_positions: Int[Array, "B T"] | None = None
    key_positions: Int[Array, "B S"] | None = None

    @property
    def distance(self) -> Int[Array, "B T S"]:
        """Key position - query position; below 0 where a query looks back."""
        assert self.query_positions is not None and self.key_positions is not None
        return self.key_positions[:, None, :] - self.query_positions[:, :, None]
