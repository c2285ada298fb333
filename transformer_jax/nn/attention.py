# SPDX-License-Identifier: Apache-2.0
"""Attention (section 3.2): the pure function of equation 1, and the multi-head module around it.
The notebook `experiments/notebooks/paper_to_code.ipynb` has both in a few lines of numpy.

B batch, T queries, S keys, H heads, G heads of keys and values, D model, K key size of a head, V
value size of a head. N rows: while decoding, each of B sentences may have several (its beams).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from transformer_jax.errors import UserError
from transformer_jax.nn import fused_attention, restricted_attention, ring_attention
from transformer_jax.nn.attention_inputs import AttentionInputs, Heads
from transformer_jax.nn.cache import Cache, KVCache, Memory
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.linear import Linear, fused_projection
from transformer_jax.nn.norms import RMSNorm
from transformer_jax.nn.ops import head_outputs, head_products, product_dtype, soft_cap, softmax
from transformer_jax.nn.positions import PositionEncoding, encoding_class
from transformer_jax.nn.sublayers import AttentionLayer, Features, Sequences
from transformer_jax.registry import file_of, require_broadcast, require_shape
from transformer_jax.runtime import platform

Weights = Float[Array, "B H T S"]
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
) -> Float[Array, "B T H V"]:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (equation 1).

    Args:
      query, key, value: G divides H; a head of keys serves H / G neighboring heads of queries.
      mask: False hides a key. A query without any key gets zeros.
      logit_bias: added to the scaled products.
      logit_cap: c; logits x become c tanh(x / c), so that they stay below c (Gemma 2, 2024).
      dtype: dtype of the two products, unless there are few queries (`ops.dtype_for_rows`).
    """
    weights = softmax(attention_logits(query, key, logit_bias, logit_cap, dtype), mask)
    return head_outputs(weights, value, dtype)


def attention_logits(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    logit_bias: Float[Array, "#B #H #T #S"] | None = None,
    logit_cap: float | None = None,
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "B H T S"]:
    """Q K^T / sqrt(d_k), biased and capped; arguments as of `scaled_dot_product_attention`."""
    logits = head_products(query / math.sqrt(query.shape[-1]), key, dtype)
    if logit_bias is not None:
        logits += logit_bias
    return soft_cap(logits, logit_cap)


class MultiHeadAttention(AttentionLayer):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O (section 3.2.2).

    The weights [B, H, T, S] pass through the method `weigh` and the heads' outputs [B, T, H, V]
    through `combine`; callers read or replace the results (`nn.hooks`). On request they are sown as
    intermediates, "weights" (before dropout) and "heads". Subclasses may replace `score`,
    `logit_bias`, `visible` and `normalize`, which make the weights, and `weigh`; no fused kernel is
    used then.
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
        self, x: Features, sequences: Sequences, deterministic: bool, cache: Cache | None = None
    ) -> tuple[Features, Cache | None]:
        """Self-attention; with a cache, to the cached tokens too."""
        encoding = sequences.encoding.of_layer(self.config)
        query, key, value = self.projections(x)
        if sequences.shared is not None:
            value = self.reuse(value, sequences.shared)
        query, key = encoding.rotate(query, key, sequences.positions)
        per_key = self._checked_per_key(x, sequences, cache)
        inputs, cache = self.self_inputs(query, key, value, sequences, cache, per_key)
        if sequences.memory is None:
            y = self.attend(x, inputs, deterministic, encoding)
        else:  # the source's keys have no positions, and those of the past are rotated already
            inputs = inputs.and_those_of(sequences.memory.inputs(query))
            y = self.attend(x, inputs, deterministic)
        return y.reshape(x.shape), cache

    def cross_attend(self, x: Features, memory: Memory, deterministic: bool) -> Features:
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
          encoding: adds its terms in self-attention; None in cross-attention.
          of_heads: applied to the heads' outputs before W^O, if the values are not those of W^O.
        """
        inputs = self._expose_inputs(inputs)
        kernel = self._fused_kernel(inputs, deterministic, encoding)
        needs_rows = self.needs_weights() or self._has_own_steps()
        if not needs_rows and ring_attention.divides(inputs, self.config):
            heads = self._attend_around_ring(inputs, encoding)
        elif kernel is not None:
            heads = kernel(inputs)
        else:
            blocks = self._restrict(inputs, encoding)
            heads = self._attend_to_all(blocks, deterministic, encoding)
            heads = restricted_attention.join_blocks(heads, inputs.query)
        heads = heads if of_heads is None else of_heads(heads)
        combined = self.combine(heads, x.reshape(*heads.shape[:2], x.shape[-1]))
        heads = require_shape(self, "combine", combined, heads.shape)
        positions = inputs.query_positions
        return self.output(self.expose("heads", heads, _HEAD_AXES, position=positions))

    def _attend_to_all(
        self, inputs: AttentionInputs, deterministic: bool, encoding: PositionEncoding | None
    ) -> Heads:
        """softmax(Q K^T / sqrt(d_k) + biases) V (equation 1), holding all weights."""
        tokens = {"query": inputs.query_positions, "key": inputs.key_positions}
        rows, length, heads = inputs.query.shape[:3]
        shape = (rows, heads, length, inputs.key.shape[1])
        logits = require_shape(self, "score", self.score(inputs.query, inputs.key), shape)
        bias = None if encoding is None else encoding.logit_bias(inputs, self.relation)
        if bias is not None:
            logits += self.expose("logit_bias", bias, _WEIGHT_AXES, **tokens)
        own_bias = self.logit_bias(inputs)
        if own_bias is not None:
            logits += require_broadcast(self, "logit_bias", own_bias, shape)
        mask = require_broadcast(self, "visible", self.visible(inputs), shape)
        weights = self.normalize(soft_cap(logits, self.config.logit_cap), mask)
        weights = self.weigh(require_shape(self, "normalize", weights, shape), deterministic)
        weights = self.expose("weights", weights, _WEIGHT_AXES, **tokens)
        outputs = head_outputs(weights, inputs.value, product_dtype(self.config.dtype))
        extra = None if encoding is None else encoding.extra_values(weights, inputs, self.relation)
        return outputs if extra is None else outputs + extra

    def score(self, query: Float[Array, "B T H K"], key: Float[Array, "B S G K"]) -> Weights:
        """Computes the logits: scaled products."""
        return attention_logits(query, key, dtype=product_dtype(self.config.dtype))

    def normalize(self, logits: Weights, mask: Bool[Array, "#B #H #T #S"]) -> Weights:
        """Turns logits into weights: softmax over the keys that the mask does not hide."""
        return softmax(logits, mask)

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
        self, x: Features
    ) -> tuple[Float[Array, "N T H K"], Float[Array, "N T G K"], Float[Array, "N T G V"]]:
        """Projects x to queries, keys and values."""
        query, key, value = self._project([self.query, self.key, self.value], x)
        return self._scale_query(query), self._normalize_key(key), value

    def queries(self, x: Features) -> Float[Array, "N T H K"]:
        """Projects x to queries."""
        return self._scale_query(self.query(x))

    def keys_values(
        self, x: Float[Array, "N S D"]
    ) -> tuple[Float[Array, "N S G K"], Float[Array, "N S G V"]]:
        """Projects x to keys and values."""
        key, value = self._project([self.key, self.value], x)
        return self._normalize_key(key), value

    def _scale_query(self, query: Heads) -> Heads:
        query = self.norm_query(query) if self.config.qk_norm else query
        return query * self.config.query_scale  # times 1 / sqrt(d_k): the `attention_scale`

    def _normalize_key(self, key: Heads) -> Heads:
        return self.norm_key(key) if self.config.qk_norm else key

    def _project(self, maps: Sequence[Linear], x: Features) -> list[Heads]:
        """Applies several maps to x, on GPUs as one product.

        On TPUs separate products write their results in the layout that attention reads; parts of
        one product would have to be copied.
        """
        if platform.target().platform == "gpu" and not self.is_initializing():
            return fused_projection(maps, x)
        return [linear(x) for linear in maps]

    def self_inputs(
        self,
        query: Float[Array, "N T H K"],
        key: Float[Array, "N T G _"],
        value: Float[Array, "N T G V"],
        sequences: Sequences,
        cache: Cache | None,
        per_key: Mapping[str, Float[Array, "N T ..."]] | None = None,
    ) -> tuple[AttentionInputs, Cache | None]:
        """Attention inputs of T tokens that attend to each other and to a cache, which grows."""
        positions = sequences.positions
        if isinstance(cache, KVCache):
            cache = cache.append(key, value, per_key)
            inputs = cache.inputs(query, positions)
        else:
            inputs = AttentionInputs(query, key, value, sequences.mask, positions, positions)
            inputs = inputs.replace(segments=sequences.segments, per_key=per_key or {})
        return inputs.replace(window=self.config.attention_window), cache

    @classmethod
    def init_cache(cls, config: TransformerConfig, rows: int, max_length: int) -> KVCache:
        return KVCache.empty(config, rows, max_length).with_per_key(cls.per_key_shapes(config))

    @classmethod
    def per_key_shapes(cls, config: TransformerConfig) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the values of a token that `per_key` returns."""
        return {}

    def per_key(
        self, x: Features, sequences: Sequences, cache: Cache | None
    ) -> Mapping[str, Float[Array, "N T ..."]]:
        """Computes float32 values of each token that its key carries, for `logit_bias` and
        `visible`; with a cache, of the T tokens that continue it."""
        return {}

    def _checked_per_key(
        self, x: Features, sequences: Sequences, cache: Cache | None
    ) -> Mapping[str, Float[Array, "N T ..."]]:
        per_key = self.per_key(x, sequences, cache)
        shapes = self.per_key_shapes(self.config)
        if per_key.keys() != shapes.keys():
            raise UserError(
                f"per_key of {file_of(self)} returned {', '.join(per_key) or 'no names'}; "
                f"per_key_shapes has {', '.join(shapes) or 'none'}"
            )
        for name, carried in per_key.items():
            require_shape(self, f"per_key, {name!r},", carried, (*x.shape[:2], *shapes[name]))
        return per_key

    def logit_bias(self, inputs: AttentionInputs) -> Float[Array, "#B #H #T #S"] | None:
        """Computes a term that is added to the logits, besides that of the position encoding."""
        return None

    def visible(self, inputs: AttentionInputs) -> Bool[Array, "#B #H #T #S"]:
        """Computes which keys each query sees; here, those of the mask within the window."""
        return inputs.windowed_mask

    def reuse(self, value: Float[Array, "N T G V"], shared: Any) -> Float[Array, "N T G V"]:
        """Combines values with what the first layer shares; here it returns the values."""
        return value

    def _has_own_steps(self) -> bool:
        steps = ("score", "normalize", "logit_bias", "visible", "weigh")
        return any(getattr(type(self), k) is not getattr(MultiHeadAttention, k) for k in steps)

    def _fused_kernel(
        self, inputs: AttentionInputs, deterministic: bool, encoding: PositionEncoding | None
    ) -> Callable[[AttentionInputs], Heads] | None:
        """Fused kernel that computes exactly this attention; None: use the plain function."""
        requirements = fused_attention.AttentionRequirements(
            weights=self.needs_weights(),
            dropout=self.dropout.rate > 0 and not deterministic,
            logit_bias=encoding is not None and encoding.has("bias", "logit_bias"),
            extra_values=encoding is not None and encoding.has("extra_values"),
            own_steps=self._has_own_steps(),
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
        sees_window = type(self).visible is MultiHeadAttention.visible
        if encoding is None or inputs.mask is None or self.needs_weights() or not sees_window:
            return inputs
        # The encoding of a stack is not causal if any of its layers is not.
        causal = encoding.causal if inputs.segments is None else inputs.segments.causal
        return restricted_attention.split_into_blocks(inputs, causal)

    def _expose_inputs(self, inputs: AttentionInputs) -> AttentionInputs:
        queries = {"position": inputs.query_positions}
        keys = {"position": inputs.key_positions}
        return inputs.replace(
            query=self.expose("queries", inputs.query, _HEAD_AXES, **queries),
            key=self.expose("keys", inputs.key, _HEAD_AXES, **keys),
            value=self.expose("values", inputs.value, _HEAD_AXES, **keys),
        )
