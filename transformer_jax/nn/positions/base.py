# SPDX-License-Identifier: Apache-2.0
"""Base class of position encodings: hooks of embeddings and attention that do nothing by default.

B batch, T queries, S keys, H heads, G heads of keys and values, D model, K key size of a head, V
value size of a head.
"""

import math
from collections.abc import Collection
from typing import Any, ClassVar

import flax.linen as nn
from jaxtyping import Array, Float, Int

from transformer_jax.nn.attention_inputs import AttentionInputs
from transformer_jax.nn.config import TransformerConfig

Embedded = Float[Array, "B T D"]
Positions = Int[Array, "B T"]
Queries = Float[Array, "B T H K"]
Keys = Float[Array, "B T G K"]
Biases = Float[Array, "B H T S"]
Distances = Int[Array, "B T S"]


class PositionEncoding(nn.Module):
    """No positions; base class of every position encoding.

    A stack has one encoding, for its embeddings and for the self-attention of all its layers.
    Positions are integers that restart at 0 in each packed sentence.

    Attributes:
      causal: True if queries see only themselves and earlier tokens, as in most decoders.
      reads: config fields, "section.field", that this class reads and others may not. Such a field
        is rejected if it is set and nothing reads it.
      layer_part: class of a module that each self-attention creates for the encoding, with its own
        parameters; None: no module.
    """

    config: TransformerConfig
    causal: bool = False

    reads: ClassVar[Collection[str]] = ()
    layer_part: ClassVar[type[nn.Module] | None] = None

    @classmethod
    def num_positions(cls, config: TransformerConfig) -> float:
        """Number of positions; unlimited by default."""
        return math.inf

    @classmethod
    def has(cls, *hooks: str) -> bool:
        """Returns True if the class overrides one of these hooks."""
        return any(getattr(cls, hook) is not getattr(PositionEncoding, hook) for hook in hooks)

    def of_layer(self, config: TransformerConfig) -> "PositionEncoding":
        """The encoding for the self-attention of a layer with this config, which may have none."""
        if config.positions == self.config.positions:
            return self
        return PositionEncoding(config, self.causal, parent=None)

    def embed(self, x: Embedded, positions: Positions) -> Embedded:
        """Adds positions to embedded tokens."""
        return x

    def rotate(self, query: Queries, key: Keys, positions: Positions) -> tuple[Queries, Keys]:
        """Rotates queries and keys of self-attention. A cache stores the rotated keys."""
        return query, key

    def bias(self, distance: Distances) -> Biases | None:
        """Bias of the logits of self-attention that depends only on the distance, key position -
        query position. None: no bias."""
        return None

    def logit_bias(self, inputs: AttentionInputs, layer_part: Any) -> Biases | None:
        """Bias of the logits of self-attention, for queries and keys after `rotate` and the layer's
        module of the class `layer_part`; by default `bias`."""
        return self.bias(inputs.distance)

    def extra_values(
        self, weights: Float[Array, "B H T S"], inputs: AttentionInputs, layer_part: Any
    ) -> Float[Array, "B T H V"] | None:
        """Term added to each head's output, such as Shaw's value vectors; None: no term. Arguments
        are those of `logit_bias`, and the attention weights."""
        return None
