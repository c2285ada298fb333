"""What a fused kernel is told and promises.

B batch, T queries, S keys, H heads, G heads of keys and values, K key size of a head, V value size
of a head.
"""

import dataclasses
from typing import ClassVar, Protocol, runtime_checkable

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from transformer_jax.nn.inputs import AttentionInputs, Segments

Heads = Float[Array, "B T H V"]


@dataclasses.dataclass(frozen=True)
class Asked:
    """What one attention asks for besides equation 1.

    Attributes:
      weights: someone looks at the weights.
      dropout: some weights are dropped.
      logit_bias: something is added to the logits.
      extra_values: the weights have a second use (`PositionEncoding.extra_values`).
      logit_cap: as `TransformerConfig` has it.
      window: likewise, of self-attention.
      dtype: of the products.
    """

    weights: bool = False
    dropout: bool = False
    logit_bias: bool = False
    extra_values: bool = False
    logit_cap: float | None = None
    window: int | None = None
    dtype: DTypeLike = jnp.float32

    def not_fused(self) -> str | None:
        """What no fused kernel does; None: nothing of that is asked."""
        reasons = {
            "someone looks at the weights": self.weights,
            "it drops weights (model.attention_dropout_rate)": self.dropout,
            "its positions add to the logits": self.logit_bias,
            "its positions use the weights once more": self.extra_values,
            "its products are no bfloat16": jnp.dtype(self.dtype) != jnp.bfloat16,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)


@runtime_checkable
class Kernel(Protocol):
    """An implementation that may stand for `attention.scaled_dot_product_attention`.

    Attributes:
      platform: that it runs on, as JAX names it.
    """

    platform: ClassVar[str]

    def refusal(self, inputs: AttentionInputs, asked: Asked) -> str | None:
        """Why it cannot compute this attention exactly and fast; None: it can."""

    def __call__(self, inputs: AttentionInputs, asked: Asked) -> Heads:
        """The heads' outputs, in `asked.dtype`; a query without any key gets zeros."""


def segments_of(inputs: AttentionInputs) -> Segments:
    """The segments that a kernel is given; `choose` takes none without them."""
    assert inputs.segments is not None
    return inputs.segments


def without_padding(heads: Heads, segments: Segments) -> Heads:
    """Zeros for queries that are padding, which a kernel lets see something."""
    real: Bool[Array, "B T"] = segments.query > 0
    return jnp.where(real[:, :, None, None], heads, 0)
