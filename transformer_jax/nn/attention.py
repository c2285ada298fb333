"""Attention (section 3.2): the pure function and the multi-head module.

B batch, T queries, S keys, H heads, G heads of keys and values, D model, K key size of a head, V
value size of a head.
"""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.nn import blocks
from transformer_jax.nn.cache import KVCache
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.heads import head_products, head_sums
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.masks import window_mask
from transformer_jax.nn.positions import Positions, encoding_class
from transformer_jax.nn.products import product_dtype


def scaled_dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    dtype: jnp.dtype = jnp.float32,
    logit_cap: float | None = None,
) -> jax.Array:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (equation 1).

    Args:
      query: [B, T, H, K].
      key: [B, S, G, K]; G divides H, and a key's head serves H / G neighbouring heads of queries.
      value: [B, S, G, V].
      mask: broadcasts to [B, H, T, S]; False removes a key. A query without any key gets zeros.
      bias: broadcasts to [B, H, T, S]; added to the scaled products.
      dtype: of the two products, unless queries are few (`dtype_for_rows`).
      logit_cap: c; logits x become c tanh(x / c), and so stay below it (Gemma 2, 2024).

    Returns:
      [B, T, H, V].
    """
    weights = attention_weights(query, key, mask, bias, dtype, logit_cap)
    return head_sums(weights, value, dtype)


def attention_weights(
    query, key, mask=None, bias=None, dtype=jnp.float32, logit_cap=None
) -> jax.Array:
    """softmax(Q K^T / sqrt(d_k)), arguments as above -> [B, H, T, S]; rows sum to 1 (or 0)."""
    logits = head_products(query / math.sqrt(query.shape[-1]), key, dtype)
    if bias is not None:
        logits += bias
    if logit_cap is not None:
        logits = logit_cap * jnp.tanh(logits / logit_cap)
    return softmax(logits, mask)


@jax.custom_vjp
def softmax(logits: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The softmax over the last axis, of the elements where `mask` is True alone: the others, and
    rows without any, become zeros. The gradient needs nothing but the result.

    With a mask `jax.nn.softmax` takes twice as long on a CPU (experiments/results/speed.md).
    """
    if mask is not None:
        logits = jnp.where(mask, logits, -jnp.inf)
    limits = jnp.finfo(logits.dtype)
    exponentials = jnp.exp(logits - jnp.maximum(logits.max(-1, keepdims=True), limits.min))
    return exponentials / jnp.maximum(exponentials.sum(-1, keepdims=True), limits.tiny)


def _softmax_forward(logits, mask):
    weights = softmax(logits, mask)
    return weights, weights


def _softmax_backward(weights, cotangent):
    mean = (weights * cotangent).sum(-1, keepdims=True)
    return weights * (cotangent - mean), None


softmax.defvjp(_softmax_forward, _softmax_backward)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O (section 3.2.2).

    `weigh` and `combine` are named methods, so that `nn.intercept_methods` may look at or replace
    the weights; collected as intermediates, they are "weights" [B, H, T, S] and "heads" [B, T, H,
    V].
    """

    config: TransformerConfig

    def setup(self):
        c = self.config
        self.dtype = product_dtype(c.dtype)
        bias = c.attention_bias == "all"
        self.query = Linear((c.d_model,), (c.num_heads, c.d_k), bias, self.dtype, c.kernel_std)
        shared = c.key_value_heads
        self.key = Linear((c.d_model,), (shared, c.d_k), bias, self.dtype, c.kernel_std)
        self.value = Linear((c.d_model,), (shared, c.d_v), bias, self.dtype, c.kernel_std)
        output_bias = c.attention_bias in ("output", "all")
        self.output = Linear(
            (c.num_heads, c.d_v), (c.d_model,), output_bias, self.dtype, c.residual_std
        )
        self.dropout = Dropout(c.attention_dropout_rate)
        if c.qk_norm:
            self.norm_query, self.norm_key = nn.RMSNorm(), nn.RMSNorm()
        part = encoding_class(c).layer_part
        self.relation = part(c) if part else None

    def queries(self, x: jax.Array) -> jax.Array:
        """[B, T, D] -> [B, T, H, K]."""
        return self.norm_query(self.query(x)) if self.config.qk_norm else self.query(x)

    def keys_values(self, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The memory's projections: [B, S, D] -> keys [B, S, G, K], values [B, S, G, V]."""
        key, value = self.key(memory), self.value(memory)
        return self.norm_key(key) if self.config.qk_norm else key, value

    def __call__(self, x, key, value, mask, deterministic: bool) -> jax.Array:
        """Attention of x [B, T, D] to the keys and values of a memory -> [B, T, D]."""
        return self.attend(self.queries(x), key, value, mask, None, deterministic)

    def to_itself(
        self,
        x: jax.Array,
        positions: jax.Array,
        encoding: Positions,
        mask: jax.Array | None,
        deterministic: bool,
        cache: KVCache | None = None,
    ) -> tuple[jax.Array, KVCache | None]:
        """Self-attention of x [B, T, D] at positions [B, T], behind those that a cache holds.

        Returns:
          [B, T, D], and the cache grown by T; where it has several beams, x is [N, T, D].
        """
        query, (key, value) = self.queries(x), self.keys_values(x)
        query, key = encoding.rotate(query, key, positions)
        if cache is None:
            arrays = (query, key, value, mask, positions)
            return self._attend_within(*arrays, encoding, deterministic), None
        cache, length = cache.append(key, value), x.shape[1]
        query, positions = cache.of_sentences(query), cache.of_sentences(positions)
        sides = (query, *cache.by_position(), cache.mask(length), positions, cache.positions)
        y = self._attend_by_positions(*sides, encoding, deterministic)
        return y.reshape(x.shape), cache

    def _attend_within(self, query, key, value, mask, positions, encoding, deterministic):
        length, arrays = query.shape[1], (query, key, value, mask, positions, positions)
        if not self._is_cheaper_in_blocks(length, encoding.causal):
            return self._attend_by_positions(*arrays, encoding, deterministic)
        arrays = blocks.split(*arrays, self.config.attention_window, encoding.causal)
        return blocks.join(self._attend_by_positions(*arrays, encoding, deterministic), length)

    def _is_cheaper_in_blocks(self, length: int, causal: bool) -> bool:
        """Under a window smaller than the row; but who asks for weights gets those of rows."""
        window = self.config.attention_window
        if window is None or self.is_mutable_collection("intermediates"):
            return False
        return blocks.num_keys(window, causal) < length

    def _attend_by_positions(
        self, query, key, value, mask, positions, key_positions, encoding, deterministic
    ) -> jax.Array:
        if self.config.attention_window is not None:
            mask &= window_mask(positions, key_positions, self.config.attention_window)
        bias = encoding.logits(self.relation, query, key, positions, key_positions)

        def further(weights):
            return encoding.values(self.relation, weights, positions, key_positions)

        return self.attend(query, key, value, mask, bias, deterministic, further)

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array,
        bias: jax.Array | None,
        deterministic: bool,
        further: Callable[[jax.Array], jax.Array | None] = lambda weights: None,
    ) -> jax.Array:
        """Weighs, combines and projects: [B, T, H, K] and the keys' side -> [B, T, D].

        `further` says what heads find under the weights besides the values: [B, T, H, V].
        """
        weights = self.weigh(query, key, mask, bias)
        self.sow("intermediates", "weights", weights)
        heads = self.combine(self.dropout(weights, deterministic), value, further)
        self.sow("intermediates", "heads", heads)
        return self.output(heads)

    def weigh(self, query, key, mask, bias) -> jax.Array:
        """`attention_weights` in the configured precision: [B, H, T, S]."""
        return attention_weights(query, key, mask, bias, self.dtype, self.config.logit_cap)

    def combine(self, weights, value, further) -> jax.Array:
        """The values' weighted sums and what comes to them: [B, T, H, V]."""
        heads, added = head_sums(weights, value, self.dtype), further(weights)
        return heads if added is None else heads + added
