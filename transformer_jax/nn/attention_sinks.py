# SPDX-License-Identifier: Apache-2.0
"""Attention with sinks: each head may attend to nothing (`model.attention_layer=sinks`).

B batch, T queries, S keys, H heads.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.nn.attention import MultiHeadAttention, Weights
from transformer_jax.nn.ops import softmax
from transformer_jax.nn.parameters import Parameter


@dataclasses.dataclass(frozen=True)
class SinkOptions:
    """Options of attention with sinks.

    Attributes:
      learned: each head learns the logit of its sink (gpt-oss, 2025), which starts at 0; false: it
        stays 0, "softmax off by one" (Miller 2023).
    """

    learned: bool = True


class SinkAttention(MultiHeadAttention):
    """Multi-head attention whose softmax has one more logit s, for a sink without a value:

    A_ij = exp(z_ij) / (exp(s) + sum_k exp(z_ik))

    The weights of a query add up to less than 1.
    """

    options = SinkOptions
    divides_tokens = False
    parameters = (Parameter(r"self_attention/sink", "bias", ("heads",)),)

    def setup(self) -> None:
        super().setup()
        shape = (self.config.num_heads,)
        if self.config.options_of(SinkOptions).learned:
            self.sink = self.param("sink", nn.initializers.zeros, shape)
        else:
            self.sink = jnp.zeros(shape)

    def normalize(
        self, logits: Float[Array, "B H T S"], mask: Bool[Array, "#B #H #T #S"] | None
    ) -> Weights:
        logits = logits if mask is None else jnp.where(mask, logits, -jnp.inf)
        sink = jnp.broadcast_to(self.sink[:, None, None], (*logits.shape[:3], 1))
        weights = softmax(jnp.concatenate([logits, sink.astype(logits.dtype)], axis=-1))
        return weights[..., :-1]  # the sink has no value
