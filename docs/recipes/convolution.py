# SPDX-License-Identifier: Apache-2.0
"""An attention layer with a small decode state: a causal convolution before attention (Canon layer
A, Allen-Zhu 2025).

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/canon \\
        --modules=docs/recipes/convolution.py --config.model.attention_layer=canon
"""

from typing import Any

import flax.linen as nn

from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.cache import KVCache, Recent
from transformer_jax.nn.layers import ATTENTION_LAYERS
from transformer_jax.nn.parameters import Parameter

WIDTH = 4  # tokens that the convolution reads, its own too


class CanonCache(KVCache):
    recent: Any = None


@ATTENTION_LAYERS.register("canon")
class Canon(MultiHeadAttention):
    """Attention to x_t + sum_j taps_j x_{t-j}."""

    parameters = (Parameter(r"self_attention/taps", "vectors", ("taps", "model")),)
    divides_tokens = bidirectional = False  # it reads the tokens before

    def setup(self):
        super().setup()
        self.taps = self.param("taps", nn.initializers.normal(0.3), (WIDTH, self.config.d_model))

    @classmethod
    def init_cache(cls, config, rows, max_length):
        recent = Recent.empty(rows, WIDTH - 1, (config.d_model,))
        return CanonCache.empty(config, rows, max_length).replace(recent=recent)

    def self_attend(self, x, sequences, deterministic, cache=None):
        recent = None if cache is None else cache.recent
        before, recent = sequences.look_back(x, WIDTH - 1, recent)
        x = (x + sum(map(lambda tap, x: tap * x, self.taps, before))).astype(x.dtype)
        y, cache = super().self_attend(x, sequences, deterministic, cache)
        return y, cache if cache is None else cache.replace(recent=recent)
