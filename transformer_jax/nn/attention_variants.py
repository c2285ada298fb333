# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention with other scores or weights: additive attention, and sinks.

B batch, T queries, S keys, H heads, G heads of keys and values, K key size of a head.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.nn.attention import MultiHeadAttention, Weights
from transformer_jax.nn.ops import softmax
from transformer_jax.nn.parameters import Parameter


class AdditiveAttention(MultiHeadAttention):
    """Multi-head attention with the score of Bahdanau et al. 2015, in place of scaled products:

    z_ij = v . tanh(q_i + k_j)

    Each head has its own v. The paper compares the two in section 3.2.1. It is slow: a score takes
    K hyperbolic tangents. The gradient computes them again instead of keeping [B, T, S, H, K].
    """

    divides_tokens = False
    position_hooks = ("bias",)
    parameters = (Parameter(r"self_attention/energy", "vectors", ("heads", "size")),)

    def setup(self) -> None:
        super().setup()
        shape = (self.config.num_heads, self.config.d_k)
        self.energy = self.param("energy", nn.initializers.normal(self.config.d_k**-0.5), shape)

    def score(self, query: Float[Array, "B T H K"], key: Float[Array, "B S G K"]) -> Weights:
        key = jnp.repeat(key, query.shape[2] // key.shape[2], axis=2)
        return _scores(query, key, self.energy)


@jax.checkpoint
def _scores(
    query: Float[Array, "B T H K"], key: Float[Array, "B S H K"], energy: Float[Array, "H K"]
) -> Float[Array, "B H T S"]:
    query, key = (jnp.swapaxes(x, 1, 2).astype(jnp.float32) for x in (query, key))
    sums = query[:, :, :, None] + key[:, :, None]  # [B, H, T, S, K]
    return (jnp.tanh(sums) * energy[:, None, None]).sum(axis=-1)


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
