# SPDX-License-Identifier: Apache-2.0
"""Attention (section 3.2): the pure function of equation 1, and the multi-head module around it.

B batch, T queries, S keys, H heads, G heads of keys and values, D model, K key size of a head, V
value size of a head. N rows: while decoding, each of B sentences may have several (its beams).
"""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from transformer_jax.nn import fused_attention, restricted_attention, ring_attention
from transformer_jax.nn.attention_inputs import AttentionInputs
from transformer_jax.nn.cache import Cache, KVCache, Memory
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.linear import Linear, fused_projection
from transformer_jax.nn.norms import RMSNorm
from transformer_jax.nn.ops import head_outputs, head_products, product_dtype, soft_cap, softmax
from transformer_jax.nn.positions import PositionEncoding, encoding_class
from transformer_jax.nn.sublayers import AttentionLayer, Sequences
from transformer_jax.runtime import platform

Weights = Float[Array, "B H T S"]
Heads = Float[Array, "B T H V"]
_HEAD_AXES = ("position", "head", "feature")
_WEIGHT_AXES = ("head", "query", "key")


def scaled_dot_product_attention(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G V"],
    mask: Bool[Array, "#B #H #T #S"] | None = None,
    *,
    logit_bias: Float[Array, "#B #H #T #S"] | None = None,
    logit_cap: float | None = None,
    dtype: DTypeLike = jnp.float32,
    score: Callable[[Array, Array], Weights] | None = None,
    normalize: Callable[[Weights, Array | None], Weights] = softmax,
    on_weights: Callable[[Weights], Weights] | None = None,
    extra_values: Callable[[Weights], Heads | None] | None = None,
) -> Float[Array, "B T H V"]:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (equation 1).

    Args:
      query, key, value: G divides H; a head of keys serves H / G neighboring heads of queries.
      mask: False hides a key. A query without any key gets zeros.
      logit_bias: added to the scaled products.
      logit_cap: c; logits x become c tanh(x / c), so that they stay below c (Gemma 2, 2024).
      dtype: dtype of the two products, unless there are few queries (`ops.dtype_for_rows`).
      score: (query, key) -> logits, in place of the scaled products.
      normalize: (logits, mask) -> weights, in place of the softmax.
      on_weights: applied to the weights, such as dropout.
      extra_values: computes a term from the weights that is added to each head's output.
    """
    change_weights = on_weights or (lambda weights: weights)
    logits = attention_logits(query, key, logit_bias, logit_cap, dtype, score)
    weights = change_weights(normalize(logits, mask))  # softmax(Q K^T / sqrt(d_k))
    heads = head_outputs(weights, value, dtype)  # softmax(Q K^T / sqrt(d_k)) V
    extra = None if extra_values is None else extra_values(weights)
    return heads if extra is None else heads + extra


def attention_logits(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    logit_bias: Float[Array, "#B #H #T #S"] | None = None,
    logit_cap: float | None = None,
    dtype: DTypeLike = jnp.float32,
    score: Callable[[Array, Array], Weights] | None = None,
) -> Float[Array, "B H T S"]:
    """Q K^T / sqrt(d_k), biased and capped; arguments as of `scaled_dot_product_attention`."""
    if score is None:
        d_k = query.shape[-1]
        logits = head_products(query / math.sqrt(d_k), key, dtype)
    else:
        logits = score(query, key)
    if logit_bias is not None:
        logits += logit_bias
    return soft_cap(logits, logit_cap)


class MultiHeadAttention(AttentionLayer):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O (section 3.2.2).

    `self_attend` and `cross_attend` project their inputs to queries, keys and values; `attend`
    computes equation 1 and W^O. The weights [B, H, T, S] pass through the method `weigh` and the
    heads' outputs [B, T, H, V] through `combine`; callers read or replace the results (`nn.hooks`).
    On request they are sown as intermediates, "weights" (before dropout) and "heads".

    Subclasses may replace the methods `score` and `normalize`, which make the weights; they are
    then computed without fused kernels.
    """

    reads: ClassVar[Collection[str]] = (
        *("model.key_size", "model.value_size", "model.num_key_value_heads"),
        *("model.attention_window", "model.attention_scale", "model.logit_cap"),
        *("model.qk_norm", "model.attention_bias"),
        *("model.attention_dropout_rate", "model.attention"),
    )
    divides_tokens = True

    def setup(self) -> None:
        c = self.config
        qkv_bias = c.attention_bias in ("qkv", "all")
        output_bias = c.attention_bias in ("output", "all")
        self.query = Linear((c.d_model,), (c.num_heads, c.d_k), qkv_bias, c, c.kernel_std)
        self.key = Linear((c.d_model,), (c.key_value_heads, c.d_k), qkv_bias, c, c.kernel_std)
        self.value = Linear((c.d_model,), (c.key_value_heads, c.d_v), qkv_bias, c, c.kernel_std)
        std = c.residual_std(self.num_sublayers)
        self.output = Linear((c.num_heads, c.d_v), (c.d_model,), output_bias, c, std)
        self.dropout = Dropout.of(c, "attention_dropout_rate")
        if c.qk_norm:
            self.norm_query = RMSNorm(c.norm_epsilon)
            self.norm_key = RMSNorm(c.norm_epsilon)
        part = encoding_class(c).layer_part
        self.relation = part(c) if part else None

    def self_attend(
        self,
        x: Float[Array, "N T D"],
        sequences: Sequences,
        deterministic: bool,
        cache: Cache | None = None,
    ) -> tuple[Float[Array, "N T D"], Cache | None]:
        """Self-attention; returns the output, and the cache grown by T.

        With a cache, the T new tokens attend to the cached tokens and to each other; the N rows are
        the beams of B sentences.
        """
        encoding = sequences.encoding.of_layer(self.config)
        query, key, value = self.projections(x)
        if sequences.shared is not None:
            value = self.reuse(value, sequences.shared)
        query, key = encoding.rotate(query, key, sequences.positions)
        inputs, cache = self.self_inputs(query, key, value, sequences, cache)
        return self.attend(x, inputs, deterministic, encoding).reshape(x.shape), cache

    def self_inputs(
        self,
        query: Float[Array, "N T H K"],
        key: Float[Array, "N T G _"],
        value: Float[Array, "N T G V"],
        sequences: Sequences,
        cache: Cache | None,
    ) -> tuple[AttentionInputs, Cache | None]:
        """Attention inputs of T tokens that attend to each other and to the tokens of a cache, and
        the cache grown by T."""
        positions = sequences.positions
        if isinstance(cache, KVCache):
            cache = cache.append(key, value)
            inputs = cache.inputs(query, positions)
        else:
            inputs = AttentionInputs(query, key, value, sequences.mask, positions, positions)
            inputs = inputs.replace(segments=sequences.segments)
        return inputs.replace(window=self.config.attention_window), cache

    @classmethod
    def init_cache(cls, config: TransformerConfig, rows: int, max_length: int) -> KVCache:
        return KVCache.empty(config, rows, max_length)

    def cross_attend(
        self, x: Float[Array, "N T D"], memory: Memory, deterministic: bool
    ) -> Float[Array, "N T D"]:
        """Attention to the encoder's output. The beams of a sentence are more queries of it."""
        x_by_sentence = x.reshape(len(memory.keys), -1, x.shape[-1])  # [B, N / B * T, D]
        inputs = memory.inputs(self.queries(x_by_sentence))
        return self.attend(x, inputs, deterministic).reshape(x.shape)

    def attend(
        self,
        x: Float[Array, "N _ D"],
        inputs: AttentionInputs,
        deterministic: bool,
        encoding: PositionEncoding | None = None,
        of_heads: Callable[[Heads], Heads] | None = None,
    ) -> Float[Array, "B T D"]:
        """Equation 1 for all heads, around a ring of devices or by a fused kernel if one can, then
        W^O.

        Args:
          x: input of the layer.
          encoding: adds its terms in self-attention; None in cross-attention.
          of_heads: applied to the heads' outputs before W^O, if the values are not those of W^O.
        """
        inputs = self._expose_inputs(inputs)
        tokens = {"query": inputs.query_positions, "key": inputs.key_positions}
        kernel = self._fused_kernel(inputs, deterministic, encoding)
        needs_rows = self.needs_weights() or bool(self._own_steps())
        if not needs_rows and ring_attention.divides(inputs, self.config):
            heads = self._attend_around_ring(inputs, encoding)
        elif kernel is not None:
            heads = kernel(inputs)
        else:
            blocks = self._restrict(inputs, encoding)
            extra_values = None
            if encoding is not None:
                extra_values = partial(
                    encoding.extra_values, inputs=blocks, layer_part=self.relation
                )
            heads = scaled_dot_product_attention(
                blocks.query,
                blocks.key,
                blocks.value,
                blocks.windowed_mask,
                logit_bias=self._logit_bias(blocks, encoding),
                logit_cap=self.config.logit_cap,
                dtype=product_dtype(self.config.dtype),
                **self._own_steps(),
                on_weights=lambda weights: self.expose(
                    "weights", self.weigh(weights, deterministic), _WEIGHT_AXES, **tokens
                ),
                extra_values=extra_values,
            )
            heads = restricted_attention.join_blocks(heads, inputs.query)
        heads = heads if of_heads is None else of_heads(heads)
        heads = self.combine(heads, x.reshape(*heads.shape[:2], x.shape[-1]))
        return self.output(self.expose("heads", heads, _HEAD_AXES, position=tokens["query"]))

    def score(self, query: Heads, key: Heads) -> Weights:
        """Computes the logits of queries [B, T, H, K] and keys [B, S, G, K]: scaled products."""
        return attention_logits(query, key, dtype=product_dtype(self.config.dtype))

    def normalize(self, logits: Weights, mask: Array | None) -> Weights:
        """Turns logits into weights: softmax over the keys that the mask does not hide."""
        return softmax(logits, mask)

    def _own_steps(self) -> dict[str, Callable]:
        """Steps of equation 1 that a subclass replaces, by name."""
        return {
            step: getattr(self, step)
            for step in ("score", "normalize")
            if getattr(type(self), step) is not getattr(MultiHeadAttention, step)
        }

    def weigh(self, weights: Weights, deterministic: bool) -> Weights:
        """Applies dropout to the attention weights."""
        self.sow("intermediates", "weights", weights)
        return self.dropout(weights, deterministic)

    def combine(self, heads: Heads, x: Float[Array, "B T D"]) -> Heads:
        """Returns the heads' outputs as W^O reads them; x is the layer's input."""
        self.sow("intermediates", "heads", heads)
        return heads

    def needs_weights(self) -> bool:
        """Returns True if a caller reads the weights of whole rows, which fused kernels and blocks
        do not compute."""
        return self.is_mutable_collection("intermediates") or self.exposes("weights", "logit_bias")

    def projections(
        self, x: Float[Array, "N T D"]
    ) -> tuple[Float[Array, "N T H K"], Float[Array, "N T G K"], Float[Array, "N T G V"]]:
        """Projects x to queries, keys and values."""
        query, key, value = self._project([self.query, self.key, self.value], x)
        return self._scale_query(query), self._normalize_key(key), value

    def reuse(self, value: Float[Array, "N T G V"], shared: Any) -> Float[Array, "N T G V"]:
        """Combines values with what the first layer shares; here it returns the values."""
        return value

    def queries(self, x: Float[Array, "N T D"]) -> Float[Array, "N T H K"]:
        """Projects x to queries."""
        return self._scale_query(self.query(x))

    def keys_values(
        self, x: Float[Array, "N S D"]
    ) -> tuple[Float[Array, "N S G K"], Float[Array, "N S G V"]]:
        """Projects x to keys and values."""
        key, value = self._project([self.key, self.value], x)
        return self._normalize_key(key), value

    def _scale_query(self, query: Heads) -> Heads:
        """Applies QK-norm and `attention_scale`, if the config has them."""
        query = self.norm_query(query) if self.config.qk_norm else query
        if self.config.attention_scale is None:
            return query
        return query * self.config.query_scale  # times 1 / sqrt(d_k): the `attention_scale`

    def _normalize_key(self, key: Heads) -> Heads:
        return self.norm_key(key) if self.config.qk_norm else key

    def _project(self, maps: Sequence[Linear], x: Float[Array, "N T D"]) -> list[Heads]:
        """Applies several maps to x, on GPUs as one product.

        On TPUs separate products write their results in the layout that attention reads; parts of
        one product would have to be copied.
        """
        if platform.target().platform == "gpu" and not self.is_initializing():
            return fused_projection(maps, x)
        return [linear(x) for linear in maps]

    def _fused_kernel(
        self, inputs: AttentionInputs, deterministic: bool, encoding: PositionEncoding | None
    ) -> Callable[[AttentionInputs], Heads] | None:
        """Fused kernel that computes exactly this attention; None: use the plain function."""
        requirements = fused_attention.AttentionRequirements(
            weights=self.needs_weights(),
            dropout=self.dropout.rate > 0 and not deterministic,
            logit_bias=encoding is not None and encoding.has("bias", "logit_bias"),
            extra_values=encoding is not None and encoding.has("extra_values"),
            own_steps=bool(self._own_steps()),
            logit_cap=self.config.logit_cap,
            dtype=product_dtype(self.config.dtype),
        )
        kernel = fused_attention.choose_kernel(self.config.attention, inputs, requirements).kernel
        return None if kernel is None else partial(kernel, requirements=requirements)

    def _attend_around_ring(
        self, inputs: AttentionInputs, encoding: PositionEncoding | None
    ) -> Heads:
        dtype = product_dtype(self.config.dtype)
        return ring_attention.attend(
            inputs.replace(key=inputs.key.astype(dtype), value=inputs.value.astype(dtype)),
            partial(attention_logits, logit_cap=self.config.logit_cap, dtype=dtype),
            partial(head_outputs, dtype=dtype),
            encoding.bias if encoding is not None and encoding.has("bias") else None,
        )

    def _restrict(
        self, inputs: AttentionInputs, encoding: PositionEncoding | None
    ) -> AttentionInputs:
        """Splits rows into blocks if a window makes that cheaper and nobody needs the weights."""
        if encoding is None or inputs.mask is None or self.needs_weights():
            return inputs
        if not restricted_attention.saves_work(inputs, encoding.causal):
            return inputs
        return restricted_attention.split_into_blocks(inputs, encoding.causal)

    def _logit_bias(
        self, inputs: AttentionInputs, encoding: PositionEncoding | None
    ) -> Weights | None:
        bias = None if encoding is None else encoding.logit_bias(inputs, self.relation)
        if bias is None:
            return None
        tokens = {"query": inputs.query_positions, "key": inputs.key_positions}
        return self.expose("logit_bias", bias, _WEIGHT_AXES, **tokens)

    def _expose_inputs(self, inputs: AttentionInputs) -> AttentionInputs:
        queries = {"position": inputs.query_positions}
        keys = {"position": inputs.key_positions}
        return inputs.replace(
            query=self.expose("queries", inputs.query, _HEAD_AXES, **queries),
            key=self.expose("keys", inputs.key, _HEAD_AXES, **keys),
            value=self.expose("values", inputs.value, _HEAD_AXES, **keys),
        )
