"""The sequences that self-attention is given, in rows of a batch.

N rows, T tokens.
"""

from flax import struct
from jaxtyping import Array, Bool, Int

from transformer_jax.nn.inputs import Segments
from transformer_jax.nn.positions import PositionEncoding


class Sequences(struct.PyTreeNode):
    """The sequences in a batch's rows: where their tokens stand, and which see each other.

    Attributes:
      encoding: how positions enter.
      positions: [N, T], from 0 in each packed sentence.
      mask: [N, 1, T, T]; None where a cache has its own.
      segments: from which the mask was made, if it was.
    """

    encoding: PositionEncoding
    positions: Int[Array, "N T"]
    mask: Bool[Array, "#N 1 T T"] | None
    segments: Segments | None = None

    @classmethod
    def packed(
        cls,
        encoding: PositionEncoding,
        positions: Int[Array, "N T"],
        segment_ids: Int[Array, "N T"],
    ) -> "Sequences":
        """Sequences packed into rows; where the encoding is causal, tokens see none after them."""
        segments = Segments(segment_ids, segment_ids, encoding.causal)
        return cls(encoding, positions, segments.mask(), segments)
