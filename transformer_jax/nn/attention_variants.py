# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention with other scores, weights or masks: additive attention, sinks, prefixes.

B batch, T queries, S keys, H heads, G heads of keys and values, K key size of a head.
"""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.errors import UserError
from transformer_jax.nn.attention import MultiHeadAttention, Weights
from transformer_jax.nn.attention_inputs import AttentionInputs
from transformer_jax.nn.cache import Cache, KVCache
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.masks import window_mask
from transformer_jax.nn.ops import additive_scores, softmax
from transformer_jax.nn.parameters import Parameter
from transformer_jax.nn.sublayers import Features, Sequences


class AdditiveAttention(MultiHeadAttention):
    """Multi-head attention with the score of Bahdanau et al. 2015, in place of scaled products:

    z_ij = v . tanh(q_i + k_j)

    Each head has its own v. The paper compares the two in section 3.2.1. It is slow: a score takes
    K hyperbolic tangents.
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
        return additive_scores(jnp.swapaxes(query, 1, 2), jnp.swapaxes(key, 1, 2), self.energy)


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
        self, logits: Float[Array, "B H T S"], mask: Bool[Array, "#B #H #T #S"]
    ) -> Weights:
        logits = jnp.where(mask, logits, -jnp.inf)
        sink = jnp.broadcast_to(self.sink[:, None, None], (*logits.shape[:3], 1))
        weights = softmax(jnp.concatenate([logits, sink.astype(logits.dtype)], axis=-1))
        return weights[..., :-1]  # the sink has no value


class PrefixAttention(MultiHeadAttention):
    """Multi-head attention in which the tokens of a prefix see each other in both directions
    (Raffel et al. 2020, figure 4); the tokens after it see what is before them.

    The prefix of a sentence ends with its first start token; without one there is none. Written
    tokens follow the prompt, which is the prefix. `attention_window` hides no token of the prefix.
    """

    divides_tokens = False

    @classmethod
    def per_key_shapes(cls, config: TransformerConfig) -> Mapping[str, tuple[int, ...]]:
        return {"prefix": ()}

    def per_key(
        self, x: Features, sequences: Sequences, cache: Cache | None
    ) -> Mapping[str, Float[Array, "N T"]]:
        assert sequences.tokens is not None
        is_start = sequences.tokens == self.config.start_id
        is_start &= True if sequences.real is None else sequences.real
        total = jnp.cumsum(is_start, axis=1)
        is_first = sequences.positions == 0
        is_last = jnp.roll(is_first, -1, axis=1).at[:, -1].set(True)
        # Start tokens of the row before this sentence, and up to its end.
        before = jax.lax.cummax(jnp.where(is_first, total - is_start, 0), axis=1)
        end = jnp.where(is_last, total, total.shape[1])
        end = jax.lax.cummin(end, axis=1, reverse=True)
        in_prefix = (total - is_start == before) & (end > before)
        if isinstance(cache, KVCache):  # a written start token begins no prefix
            is_prompt = jnp.repeat(cache.length == 0, cache.num_beams)
            in_prefix &= is_prompt[:, None]
        return {"prefix": in_prefix.astype(jnp.float32)}

    def visible(self, inputs: AttentionInputs) -> Bool[Array, "#B #H #T #S"]:
        # Queries after the prefix see it at any distance.
        in_prefix = inputs.per_key["prefix"][:, None, None] > 0
        return inputs.windowed_mask | (inputs.sentence_mask & in_prefix)


class BidirectionalAttention(MultiHeadAttention):
    """Multi-head attention in which each token of a sentence sees all others, in a decoder too."""

    divides_tokens = False

    def visible(self, inputs: AttentionInputs) -> Bool[Array, "#B #H #T #S"]:
        mask = inputs.sentence_mask
        return mask if inputs.window is None else mask & window_mask(inputs.distance, inputs.window)

    @classmethod
    def init_cache(cls, config: TransformerConfig, rows: int, max_length: int) -> KVCache:
        raise UserError(
            "config.model.attention_layer 'bidirectional' sees later tokens, so that it cannot "
            "write one token after another"
        )
