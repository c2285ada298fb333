# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention (DeepSeek-V2, 2024, section 2.1).

A token's keys and values of all heads are linear maps of one latent vector c, which the cache keeps
in their place:

    c = RMSNorm(W^DKV h)    k_i^C = W_i^UK c    v_i = W_i^UV c    q_i^C = W_i^UQ c^Q

Rotation does not commute with W^UK. Each head's query therefore has a second part q_i^R, and the
heads share one second key k^R = RoPE(W^KR h), which is cached too; q_i k_i = q_i^C k_i^C + q_i^R
k^R. One new token reads the cache without keys of its heads: W_i^UK moves to the query, and W_i^UV
after the sum over tokens ("absorbed", end of section 2.1.2),

    q_i^C (W_i^UK c) = (W_i^UK^T q_i^C) c        sum_s w_s W_i^UV c_s = W_i^UV (sum_s w_s c_s)

which is multi-query attention with the key [c; k^R] and the value c.

N rows, B sentences, T queries, S keys, H heads, D model, R latent, P rotated part, K the part of a
head's key from the latent (`model.key_size`), V value size of a head (`model.value_size`).
"""

import dataclasses
import math
from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.attention_inputs import AttentionInputs, Heads
from transformer_jax.nn.cache import Cache, KVCache
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.norms import RMSNorm
from transformer_jax.nn.ops import einsum, product_dtype
from transformer_jax.nn.parameters import Parameter
from transformer_jax.nn.sublayers import Features, Sequences
from transformer_jax.ranges import Range, Size, check_fields


@dataclasses.dataclass(frozen=True)
class LatentOptions:
    """Options of multi-head latent attention.

    Attributes:
      kv_rank: size of the latent vector that keys and values are made from; 4 d_k in DeepSeek-V2.
      query_rank: size of the latent vector that queries are made from; None: they are made from
        the layer's input, as in DeepSeek-V2-Lite.
      rotary_size: size of the part of queries and keys that is rotated, in addition to
        `model.key_size`; d_k / 2 in DeepSeek-V2.
    """

    kv_rank: Size = 512
    query_rank: Size | None = None
    rotary_size: Annotated[int, Range(2, 1024)] = 64

    def __post_init__(self) -> None:
        check_fields(self)
        if self.rotary_size % 2:
            raise ValueError(f"rotary_size is {self.rotary_size}; it must be even")


class LatentAttention(MultiHeadAttention):
    """Self-attention whose cache holds a latent vector and one rotated key for each token."""

    options = LatentOptions
    reads = (
        *("model.key_size", "model.value_size", "model.attention_window"),
        *("model.attention_scale", "model.logit_cap"),
        *("model.attention_dropout_rate", "model.attention"),
    )
    position_hooks = ("rotate",)
    parameters = (
        Parameter(r"(query_down|latent)/kernel", "matrix", ("model", "rank")),
        Parameter(r"(query|key|value)_up/kernel", "matrix", ("rank", "heads", "size")),
        Parameter(r"rotary/kernel", "matrix", ("model", "shared", "size")),
        Parameter(r"norm_latent/scale", "scale", ("rank",)),
    )

    def setup(self) -> None:
        c = self.config
        o = c.options_of(LatentOptions)
        model = (c.d_model,)
        latent = (o.kv_rank,)
        heads = c.num_heads
        query_size = c.d_k + o.rotary_size
        if o.query_rank is None:
            self.query = Linear(model, (heads, query_size), False, c, c.kernel_std)
        else:
            self.query_down = Linear(model, (o.query_rank,), False, c, c.kernel_std)
            self.norm_query = RMSNorm(c.norm_epsilon)
            self.query_up = Linear((o.query_rank,), (heads, query_size), False, c, c.kernel_std)
        self.latent = Linear(model, latent, False, c, c.kernel_std)
        self.norm_latent = RMSNorm(c.norm_epsilon)
        self.rotary = Linear(model, (1, o.rotary_size), False, c, c.kernel_std)
        self.key_up = Linear(latent, (heads, c.d_k), False, c, c.kernel_std)
        self.value_up = Linear(latent, (heads, c.d_v), False, c, c.kernel_std)
        std = c.residual_std(self.num_sublayers)
        self.output = Linear((heads, c.d_v), model, False, c, std)
        self.dropout = Dropout.of(c, "attention_dropout_rate")
        self.relation = None

    def self_attend(
        self, x: Features, sequences: Sequences, deterministic: bool, cache: Cache | None = None
    ) -> tuple[Features, Cache | None]:
        """Self-attention, in the absorbed form for one new token that reads a cache."""
        query = self.queries(x)
        latent = self.norm_latent(self.latent(x))
        content, rotated = jnp.split(query, [self.config.d_k], axis=-1)
        encoding = sequences.encoding.of_layer(self.config)
        rotated, shared = encoding.rotate(rotated, self.rotary(x), sequences.positions)
        query = jnp.concatenate([content, rotated.astype(query.dtype)], axis=-1)
        key = jnp.concatenate([latent[:, :, None], shared], axis=-1)  # [N, T, 1, R + P]
        inputs, cache = self.self_inputs(query, key, key[..., :0], sequences, cache)
        is_one_token = cache is not None and x.shape[1] == 1
        # Hooks read the keys and values of heads, which the absorbed form does not compute.
        absorbs = is_one_token and not self.exposes("queries", "keys", "values")
        inputs = self.absorb(inputs) if absorbs else self.expand_latent(inputs)
        of_heads = self.values if absorbs else None
        y = self.attend(x, inputs, deterministic, encoding, of_heads)
        return y.reshape(x.shape), cache

    def queries(self, x: Features) -> Float[Array, "N T H KP"]:
        """Projects x to the queries [q^C; q^R], through a latent vector if the options say so."""
        if self.config.options_of(LatentOptions).query_rank is None:
            query = self.query(x)
        else:
            query = self.query_up(self.norm_query(self.query_down(x)))
        scale = self.config.attention_scale
        return query if scale is None else query * (scale * math.sqrt(query.shape[-1]))

    def expand_latent(self, inputs: AttentionInputs) -> AttentionInputs:
        """Inputs with the key [W^UK c; k^R] and the value W^UV c of each head."""
        latent, shared = jnp.split(inputs.key, [self.value_up.inputs[0]], axis=-1)
        latent = latent[:, :, 0]
        key = self.key_up(latent)
        shared = jnp.broadcast_to(shared, (*key.shape[:3], shared.shape[-1])).astype(key.dtype)
        key = jnp.concatenate([key, shared], axis=-1)
        return inputs.replace(key=key, value=self.value_up(latent))

    def absorb(self, inputs: AttentionInputs) -> AttentionInputs:
        """Inputs with the query [W^UK^T q^C; q^R], for the key [c; k^R] and the value c of all
        heads."""
        content, rotated = jnp.split(inputs.query, [self.config.d_k], axis=-1)
        dtype = product_dtype(self.config.dtype)
        content = einsum("bthk,rhk->bthr", content, self.key_up.matrix(), dtype)
        query = jnp.concatenate([content, rotated], axis=-1)
        # Equation 1 divides by the square root of its query's size, here R + P, not K + P.
        query *= math.sqrt(query.shape[-1] / inputs.query.shape[-1])
        return inputs.replace(query=query, value=inputs.key[..., : content.shape[-1]])

    def values(self, heads: Float[Array, "B T H R"]) -> Heads:
        """Outputs of heads, W^UV of sums of latent vectors."""
        dtype = product_dtype(self.config.dtype)
        return einsum("bthr,rhv->bthv", heads, self.value_up.matrix(), dtype)

    @classmethod
    def init_cache(cls, config: TransformerConfig, rows: int, max_length: int) -> KVCache:
        """Empty cache of keys [c; k^R], the same for all heads; the values, c, need no other."""
        o = config.options_of(LatentOptions)
        return KVCache.of_sizes(1, o.kv_rank + o.rotary_size, 0, config, rows, max_length)
