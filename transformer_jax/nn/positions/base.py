"""The hooks through which order may enter the model; each does nothing by default.

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


class PositionEncoding(nn.Module):
    """No positions; the base of every position encoding.

    A stack has one, for its embeddings and for the self-attention of all its layers. Positions are
    integers that restart at 0 in each packed sentence.

    Attributes:
      config: of the model.
      causal: whether queries see only themselves and what is before them, as in a decoder.
      reads: the fields of a config, "section.field", that other positions may do without and these
        read; others that are set are refused.
      layer_part: a module of the config that each self-attention holds for the encoding, with
        parameters of its own; None: there is none.
    """

    config: TransformerConfig
    causal: bool = False

    reads: ClassVar[Collection[str]] = ()
    layer_part: ClassVar[type[nn.Module] | None] = None

    @classmethod
    def reach(cls, config: TransformerConfig) -> float:
        """How many positions there are: without limit, unless a subclass says otherwise."""
        return math.inf

    @classmethod
    def has(cls, *hooks: str) -> bool:
        """Whether one of these hooks does something."""
        return any(getattr(cls, hook) is not getattr(PositionEncoding, hook) for hook in hooks)

    def embed(
        self, x: Float[Array, "B T D"], positions: Int[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """Adds to the embeddings."""
        return x

    def rotate(
        self,
        query: Float[Array, "B T H K"],
        key: Float[Array, "B T G K"],
        positions: Int[Array, "B T"],
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B T G K"]]:
        """Changes queries and keys of self-attention. A cache stores the changed keys."""
        return query, key

    def bias(self, distance: Int[Array, "B T S"]) -> Float[Array, "B H T S"] | None:
        """Added to the logits of self-attention, where it depends on distances alone: key position
        - query position. None: nothing is added."""
        return None

    def logit_bias(
        self, inputs: AttentionInputs, layer_part: Any
    ) -> Float[Array, "B H T S"] | None:
        """Added to the logits of self-attention; by default `bias`.

        Args:
          inputs: queries and keys after `rotate`, with their positions.
          layer_part: the layer's own module of the class `layer_part`, or None.
        """
        return self.bias(inputs.distance)

    def extra_values(
        self,
        weights: Float[Array, "B H T S"],
        inputs: AttentionInputs,
        layer_part: Any,
    ) -> Float[Array, "B T H V"] | None:
        """A term added to each head's output, such as Shaw's value vectors; None: nothing is added.

        Args:
          weights: of attention.
          inputs: as for `logit_bias`.
          layer_part: likewise.
        """
        return None
