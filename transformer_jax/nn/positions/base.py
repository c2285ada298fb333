"""The hooks through which order may enter the model, each a no-op.

B batch, T queries, S keys, H heads, G heads of keys and values, D model, K key size of a head, V
value size of a head.
"""

import math
from typing import ClassVar

import flax.linen as nn
import jax

from transformer_jax.nn.config import TransformerConfig


class Positions(nn.Module):
    """No positions: the hooks, and the base of every encoding.

    A stack has one, for its embeddings and for the self-attention of all its layers. Positions are
    int32 and restart in each packed sentence.

    Attributes:
      config: of the model.
      causal: whether queries look at themselves and back alone, as in a decoder.
      layer_part: a module of the config that each self-attention holds for the encoding, with
        parameters of its own; None: it holds nothing.
    """

    config: TransformerConfig
    causal: bool = False

    layer_part: ClassVar[type[nn.Module] | None] = None

    @classmethod
    def reach(cls, config: TransformerConfig) -> float:
        """How many positions the encoding has: without end unless it overrides this."""
        return math.inf

    def embed(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        """Adds to the embeddings: x [B, T, D], positions [B, T] -> [B, T, D]."""
        return x

    def rotate(
        self, query: jax.Array, key: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Changes the queries and keys of self-attention: [B, T, H, K], [B, T, G, K], positions
        [B, T]. A cache keeps the changed keys."""
        return query, key

    def bias(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array | None:
        """Adds to the logits of self-attention: [B, T], [B, S] -> [B, H, T, S]; None: nothing."""
        return None

    def logits(
        self,
        layer: nn.Module | None,
        query: jax.Array,
        key: jax.Array,
        query_positions: jax.Array,
        key_positions: jax.Array,
    ) -> jax.Array | None:
        """Likewise, where it depends on the content and on the layer; else it is `bias`.

        Args:
          layer: the layer's `layer_part`.
          query: [B, T, H, K] behind `rotate`.
          key: [B, S, G, K] behind `rotate`.
          query_positions: [B, T].
          key_positions: [B, S].
        """
        return self.bias(query_positions, key_positions)

    def values(
        self,
        layer: nn.Module | None,
        weights: jax.Array,
        query_positions: jax.Array,
        key_positions: jax.Array,
    ) -> jax.Array | None:
        """Adds to what the heads found under weights [B, H, T, S]: [B, T, H, V]; None: nothing."""
        return None
