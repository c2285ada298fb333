# SPDX-License-Identifier: Apache-2.0
"""An attention layer: retention (Sun et al. 2023), linear attention whose memory fades.

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/retention \\
        --modules=docs/recipes/linear_attention.py --config.model.positions=none \\
        --config.model.attention_layer=retention --config.model.retention.slowest=10
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.cache import Cache
from transformer_jax.nn.layers import ATTENTION_LAYERS
from transformer_jax.nn.norms import standardize


@dataclasses.dataclass(frozen=True)
class RetentionOptions:
    slowest: float = 12.0  # this head keeps 1 - 2^-slowest of its state, the fastest 1 - 2^-5


class RetentionCache(Cache):
    state: Any  # [B, J, H, K, V]


@ATTENTION_LAYERS.register("retention")
class Retention(MultiHeadAttention):
    """o_t = q_t S_t of each head, with S_t = a S_{t-1} + k_t v_t^T, from zeros in each sentence."""

    options, position_hooks = RetentionOptions, ()
    bidirectional = divides_tokens = False  # each token follows from the one before

    @classmethod
    def init_cache(cls, config, rows, max_length):
        shape = (rows, 1, config.num_heads, config.d_k, config.d_v)
        return RetentionCache(jnp.zeros(rows, jnp.int32), jnp.zeros(shape))

    def self_attend(self, x, sequences, deterministic, cache=None):
        query, key, value = self.projections(x)  # [N, T, H, K]
        slowest = self.config.options_of(RetentionOptions).slowest
        decay = 1 - 2.0 ** -jnp.linspace(5, slowest, query.shape[2])
        decay = jnp.where(sequences.positions[..., None] == 0, 0, decay)
        if sequences.real is not None:  # padding does not change the state
            real = sequences.real[..., None]
            decay, key = jnp.where(real, decay, 1), jnp.where(real[..., None], key, 0)

        def step(state, token):
            decay, query, key, value = token
            state = decay[..., None, None] * state + key[..., None] * value[..., None, :]
            return state, jnp.einsum("nhk,nhkv->nhv", query, state)

        start = self.init_cache(self.config, len(x), 0) if cache is None else cache
        rows = start.state.reshape(-1, *start.state.shape[2:])
        tokens = jax.tree.map(lambda y: jnp.swapaxes(y, 0, 1), (decay, query, key, value))
        rows, heads = jax.lax.scan(step, rows, tokens)
        if cache is not None:
            state = rows.reshape(cache.state.shape)
            cache = cache.replace(state=state, length=cache.length + x.shape[1])
        heads = self.combine(standardize(jnp.swapaxes(heads, 0, 1), False), x)
        return self.output(self.expose("heads", heads, ("position", "head", "feature"))), cache
