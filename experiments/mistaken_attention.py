# SPDX-License-Identifier: Apache-2.0
"""Attention with mistakes of docs/mistakes.md, for `experiments/mistakes.py`."""

import jax
import jax.numpy as jnp

from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.layers import ATTENTION_LAYERS


@ATTENTION_LAYERS.register("softmax_twice")
class SoftmaxTwice(MultiHeadAttention):
    """Applies the softmax to its own weights."""

    def normalize(self, logits, mask):
        return super().normalize(super().normalize(logits, mask), mask)


@ATTENTION_LAYERS.register("mask_zero")
class MaskZero(MultiHeadAttention):
    """Sets hidden scores to 0."""

    def normalize(self, logits, mask):
        return jax.nn.softmax(logits if mask is None else jnp.where(mask, logits, 0.0))


@ATTENTION_LAYERS.register("mask_after_softmax")
class MaskAfterSoftmax(MultiHeadAttention):
    """Hides weights, not scores."""

    def normalize(self, logits, mask):
        weights = jax.nn.softmax(logits)
        return weights if mask is None else jnp.where(mask, weights, 0.0)
