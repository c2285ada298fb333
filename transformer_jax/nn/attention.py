"""Attention (section 3.2): the pure function and the multi-head module.

B batch, T queries, S keys, H heads, G heads of keys and values, D model, K key size of a head, V
value size of a head; N rows, of which B sentences may have several while decoding.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import flax.linen as nn
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.nn import fused_attention, restricted_attention
from transformer_jax.nn.attention_inputs import AttentionInputs, Segments
from transformer_jax.nn.cache import KVCache, Memory
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.linear import Linear, fused_projection
from transformer_jax.nn.masks import window_mask
from transformer_jax.nn.norms import RMSNorm
from transformer_jax.nn.ops import capped, head_products, head_sums, product_dtype, softmax
from transformer_jax.nn.positions import PositionEncoding, encoding_class
from transformer_jax.runtime import platform

# FOLDED nn.sequences: The sequences that self-attention is given, in rows of a batch. N rows, T
# tokens.


class Sequences(struct.PyTreeNode):
    """The sequences in a batch's rows: where their tokens stand, and which see each other.

    Attributes:
      encoding: how positions enter.
      positions: [N, T], from 0 in each packed sentence.
      mask: [N, 1, T, T]; None where a cache has its own.
      segments: from which the mask was made, if it was.
    """

    encoding: PositionEncoding
    positions: Int[Array, "N T"]
    mask: Bool[Array, "#N 1 T T"] | None
    segments: Segments | None = None

    @classmethod
    def packed(
        cls,
        encoding: PositionEncoding,
        positions: Int[Array, "N T"],
        segment_ids: Int[Array, "N T"],
    ) -> "Sequences":
        """Sequences packed into rows; where the encoding is causal, tokens see none after them."""
        segments = Segments(segment_ids, segment_ids, encoding.causal)
        return cls(encoding, positions, segments.mask(), segments)


Weights = Float[Array, "B H T S"]
Heads = Float[Array, "B T H V"]


def scaled_dot_product_attention(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G V"],
    mask: Bool[Array, "#B #H #T #S"] | None = None,
    *,
    logit_bias: Float[Array, "#B #H #T #S"] | None = None,
    logit_cap: float | None = None,
    dtype: DTypeLike = jnp.float32,
    on_weights: Callable[[Weights], Weights] | None = None,
    extra_values: Callable[[Weights], Heads | None] | None = None,
) -> Float[Array, "B T H V"]:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (equation 1).

    Args:
      query, key, value: G divides H; a head of keys serves H / G neighboring heads of queries.
      mask: False removes a key. A query without any key gets zeros.
      logit_bias: added to the scaled products.
      logit_cap: c; logits x become c tanh(x / c), and so stay below it (Gemma 2, 2024).
      dtype: of the two products, unless queries are few (`products.dtype_for_rows`).
      on_weights: what the weights pass through, such as dropout.
      extra_values: a term added to each head's output, from the weights.
    """
    weights = softmax(attention_logits(query, key, logit_bias, logit_cap, dtype), mask)
    if on_weights is not None:
        weights = on_weights(weights)
    heads = head_sums(weights, value, dtype)
    extra = None if extra_values is None else extra_values(weights)
    return heads if extra is None else heads + extra


def attention_logits(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    logit_bias: Float[Array, "#B #H #T #S"] | None = None,
    logit_cap: float | None = None,
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "B H T S"]:
    """Q K^T / sqrt(d_k), with bias and cap; arguments as above."""
    logits = head_products(query / math.sqrt(query.shape[-1]), key, dtype)
    if logit_bias is not None:
        logits += logit_bias
    return capped(logits, logit_cap)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O (section 3.2.2).

    All weights [B, H, T, S] pass through the method `weigh`, all heads' outputs [B, T, H, V]
    through `combine`, where hooks read or replace them (`nn.hooks`). On request they are sown as
    intermediates, "weights" (before dropout) and "heads".

    Attributes:
      config: of the model.
      num_sublayers: of the stack that it stands in, by which initialization "gpt2" scales W^O.
    """

    config: TransformerConfig
    num_sublayers: int = 1

    def setup(self) -> None:
        c = self.config
        bias, output_bias = (c.attention_bias in (part, "all") for part in ("qkv", "output"))
        model, shared = (c.d_model,), c.key_value_heads
        self.query = Linear(model, (c.num_heads, c.d_k), bias, c, c.kernel_std)
        self.key = Linear(model, (shared, c.d_k), bias, c, c.kernel_std)
        self.value = Linear(model, (shared, c.d_v), bias, c, c.kernel_std)
        std = c.residual_std(self.num_sublayers)
        self.output = Linear((c.num_heads, c.d_v), model, output_bias, c, std)
        self.dropout = Dropout(c.attention_dropout_rate, c.dropout_bits)
        if c.qk_norm:
            self.norm_query, self.norm_key = RMSNorm(c.norm_epsilon), RMSNorm(c.norm_epsilon)
        part = encoding_class(c).layer_part
        self.relation = part(c) if part else None

    def self_attend(
        self,
        x: Float[Array, "N T D"],
        sequences: Sequences,
        deterministic: bool,
        cache: KVCache | None = None,
    ) -> tuple[Float[Array, "N T D"], KVCache | None]:
        """Self-attention of T tokens a row; with a cache, to those that it holds and themselves.

        Returns:
          the output, and the cache grown by T; its rows are the beams of B sentences.
        """
        encoding, positions = sequences.encoding, sequences.positions
        query, key, value = self.projections(x)
        query, key = encoding.rotate(query, key, positions)
        if cache is not None:
            cache = cache.append(key, value)
            inputs = cache.inputs(query, positions)
        else:
            assert sequences.mask is not None
            inputs = AttentionInputs(query, key, value, sequences.mask, positions, positions)
            inputs = inputs.replace(segments=sequences.segments)
        return self.attend(inputs, deterministic, encoding).reshape(x.shape), cache

    def cross_attend(
        self, x: Float[Array, "N T D"], memory: Memory, deterministic: bool
    ) -> Float[Array, "N T D"]:
        """Attention to the encoder's output. Beams of one sentence are further queries of it."""
        rows = x.reshape(len(memory.keys), -1, x.shape[-1])  # [B, N / B * T, D]
        inputs = memory.inputs(self.queries(rows))
        return self.attend(inputs, deterministic).reshape(x.shape)

    def projections(
        self, x: Float[Array, "N T D"]
    ) -> tuple[Float[Array, "N T H K"], Float[Array, "N T G K"], Float[Array, "N T G V"]]:
        """Queries, keys and values of the same x."""
        query, key, value = self._mapped([self.query, self.key, self.value], x)
        return self._scaled(query), self._normed(key), value

    def queries(self, x: Float[Array, "N T D"]) -> Float[Array, "N T H K"]:
        """What attends."""
        return self._scaled(self.query(x))

    def keys_values(
        self, x: Float[Array, "N S D"]
    ) -> tuple[Float[Array, "N S G K"], Float[Array, "N S G V"]]:
        """What is attended to."""
        key, value = self._mapped([self.key, self.value], x)
        return self._normed(key), value

    def _scaled(self, query: Heads) -> Heads:
        """Queries as they meet keys: with the norm and the scale that the config has for them."""
        query = self.norm_query(query) if self.config.qk_norm else query
        return query if self.config.attention_scale is None else query * self.config.query_scale

    def _normed(self, key: Heads) -> Heads:
        return self.norm_key(key) if self.config.qk_norm else key

    def _mapped(self, maps: Sequence[Linear], x: Float[Array, "N T D"]) -> list[Heads]:
        """x under several maps: one product on GPUs. On TPUs separate products write their results
        in the layout that attention reads; parts of one product would have to be copied."""
        if platform.target().platform == "gpu" and not self.is_initializing():
            return fused_projection(maps, x)
        return [each(x) for each in maps]

    def attend(
        self,
        inputs: AttentionInputs,
        deterministic: bool,
        encoding: PositionEncoding | None = None,
    ) -> Float[Array, "B T D"]:
        """Equation 1 for all heads, then W^O; `encoding` adds its terms in self-attention."""
        asked = fused_attention.AttentionRequirements(
            weights=self.weights_are_wanted(),
            dropout=self.dropout.rate > 0 and not deterministic,
            logit_bias=encoding is not None and encoding.has("bias", "logit_bias"),
            extra_values=encoding is not None and encoding.has("extra_values"),
            logit_cap=self.config.logit_cap,
            window=None if encoding is None else self.config.attention_window,
            dtype=product_dtype(self.config.dtype),
        )
        kernel = fused_attention.choose(self.config.attention, inputs, asked).kernel
        if kernel is None:
            heads = self._plain(inputs, deterministic, encoding)
        else:
            heads = kernel(inputs, asked)
        return self.output(self.combine(heads))

    def _plain(
        self, inputs: AttentionInputs, deterministic: bool, encoding: PositionEncoding | None
    ) -> Heads:
        """The heads by the paper's function; a windowed row in blocks where that is cheaper."""
        c, (rows, length, *_), size = self.config, inputs.query.shape, None
        logit_bias, extra_values = None, None
        if encoding is not None:
            if (size := self._block_size(inputs, encoding.causal)) is not None:
                inputs = restricted_attention.split(inputs, size, encoding.causal)
            logit_bias = encoding.logit_bias(inputs, self.relation)
            extra_values = partial(encoding.extra_values, inputs=inputs, layer_part=self.relation)
        mask = inputs.mask
        if encoding is not None and c.attention_window is not None:
            mask &= window_mask(inputs.distance, c.attention_window)
        heads = scaled_dot_product_attention(
            inputs.query,
            inputs.key,
            inputs.value,
            mask,
            logit_bias=logit_bias,
            logit_cap=c.logit_cap,
            dtype=product_dtype(c.dtype),
            on_weights=partial(self.weigh, deterministic=deterministic),
            extra_values=extra_values,
        )
        return heads.reshape(rows, -1, *heads.shape[2:])[:, :length]

    def weigh(self, weights: Weights, deterministic: bool) -> Weights:
        """The weights as they are used: after dropout."""
        self.sow("intermediates", "weights", weights)
        return self.dropout(weights, deterministic)

    def combine(self, heads: Heads) -> Heads:
        """The heads' outputs as they are concatenated."""
        self.sow("intermediates", "heads", heads)
        return heads

    def weights_are_wanted(self) -> bool:
        """Whether someone asks for all weights of whole rows; fused kernels do not give them."""
        return self.is_mutable_collection("intermediates")

    def _block_size(self, inputs: AttentionInputs, causal: bool) -> int | None:
        """Of the blocks in which a windowed row is cheaper; None: whole, as it is when someone asks
        for its weights."""
        window, length = self.config.attention_window, inputs.query.shape[1]
        whole = inputs.key.shape[1] == length  # no cache
        if window is None or not whole or self.weights_are_wanted():
            return None
        return window if restricted_attention.num_keys(window, causal) < length else None
