# SPDX-License-Identifier: Apache-2.0
"""Gated linear attention: Gated DeltaNet (Yang et al. 2024, "Gated Delta Networks").

Each head keeps a matrix S, which maps keys to values, instead of all keys and values. A token first
lets S fade (alpha), then replaces the value that S holds under its key by a share (beta) of its own
value, and reads the value under its query (equation 10):

    S_t = alpha_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T
    o_t = S_t q_t

`GatedDeltaNet` is the layer around it, as in Qwen3-Next.

B sentences, J beams of a sentence, N = B J rows, T tokens, H heads of values, G heads of queries
and keys, K key size of a head, V value size of a head, D model, W width of the convolutions.
"""

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from typing import Annotated, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from transformer_jax.nn.cache import Cache, Recent
from transformer_jax.nn.config import TransformerConfig, activation_dtype
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.norms import RMSNorm, standardize
from transformer_jax.nn.ops import einsum, product_dtype
from transformer_jax.nn.parameters import Parameter
from transformer_jax.nn.sublayers import AttentionLayer, Features, Sequences
from transformer_jax.ranges import Heads, Range

_HEAD_AXES = ("position", "head", "feature")

CHUNK_SIZE = 64


def delta_rule_step(
    state: Float[Array, "*B V K"],
    query: Float[Array, "*B K"],
    key: Float[Array, "*B K"],
    value: Float[Array, "*B V"],
    log_decay: Float[Array, "*B"],
    strength: Float[Array, "*B"],
) -> tuple[Float[Array, "*B V K"], Float[Array, "*B V"]]:
    """One token of the gated delta rule.

    Args:
      state: S_{t-1}.
      query, key, value: q_t, k_t, v_t.
      log_decay: log alpha_t, at most 0; -inf forgets everything.
      strength: beta_t.

    Returns:
      S_t and S_t q_t.
    """
    state = state * jnp.exp(log_decay)[..., None, None]
    error = value - (state * key[..., None, :]).sum(-1)
    state += (strength[..., None] * error)[..., None] * key[..., None, :]
    return state, (state * query[..., None, :]).sum(-1)


def chunked_delta_rule(
    query: Float[Array, "N T H K"],
    key: Float[Array, "N T H K"],
    value: Float[Array, "N T H V"],
    log_decay: Float[Array, "N T H"],
    strength: Float[Array, "N T H"],
    state: Float[Array, "N H V K"] | None = None,
    *,
    chunk_size: int = CHUNK_SIZE,
    dtype: DTypeLike = jnp.float32,
) -> tuple[Float[Array, "N T H V"], Float[Array, "N H V K"]]:
    """The gated delta rule of T tokens, chunk by chunk.

    With u_t = beta_t (v_t - alpha_t S_{t-1} k_t), the rule is S_t = alpha_t S_{t-1} + u_t k_t^T.
    Let a_ti be the product of alpha after token i up to token t, and a_t that of the whole chunk up
    to t. From the state S before the chunk, the u of its tokens are the solution of

        u_t + sum_{i<t} beta_t a_ti (k_t . k_i) u_i = beta_t v_t - beta_t a_t S k_t

    or (I + L) U = B V - B A K S^T, whose inverse (I + L)^-1 does not depend on S: the UT transform
    (Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule"). Then

        o_t = a_t S q_t + sum_{i<=t} a_ti (q_t . k_i) u_i
        S'  = a_C S + sum_i a_Ci u_i k_i^T

    Args:
      log_decay: log alpha, at most 0. -inf at a token hides the tokens before it: no gradient
        reaches them.
      strength: beta. 0, with a log_decay of 0, does not change the state.
      state: S before the first token; None: zeros.
      chunk_size: C.
      dtype: dtype of the products; the inverse, decays and states are float32.

    Returns:
      outputs o, and S after the last token.
    """
    rows, length, heads, _ = query.shape
    split = partial(_split_chunks, size=min(chunk_size, length))
    query, key, value, log_decay, strength = map(split, (query, key, value, log_decay, strength))
    strength = strength[..., None]

    # All that does not depend on the state, for all chunks at once.
    between = decay_between(log_decay)  # a_ti
    since = jnp.exp(jnp.cumsum(log_decay, -1))[..., None]  # a_t
    overlaps = einsum("nzhtk,nzhik->nzhti", strength * key, key, dtype)
    inverse = inverse_of_unit_lower(jnp.tril(overlaps * between, -1))  # (I + L)^-1
    from_values = einsum("nzhti,nzhiv->nzhtv", inverse, strength * value, dtype)
    from_state = einsum("nzhti,nzhik->nzhtk", inverse, strength * since * key, dtype)
    weights = einsum("nzhtk,nzhik->nzhti", query, key, dtype) * between
    decayed_key = between[..., -1, :, None] * key  # a_Ci k_i

    def step(state: Array, chunk: tuple[Array, ...]) -> tuple[Array, Array]:
        query, from_values, from_state, weights, decayed_key, decay = chunk
        update = from_values - einsum("nhtk,nhvk->nhtv", from_state, state, dtype)  # U
        heads = einsum("nhtk,nhvk->nhtv", query, state, dtype)
        heads += einsum("nhti,nhiv->nhtv", weights, update, dtype)
        return decay * state + einsum("nhtv,nhtk->nhvk", update, decayed_key, dtype), heads

    shape = (rows, heads, value.shape[-1], key.shape[-1])
    start = jnp.zeros(shape, jnp.float32) if state is None else state
    chunks = (query * since, from_values, from_state, weights, decayed_key, since[..., -1:, :])
    chunks_first = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), chunks)
    last, outputs = jax.lax.scan(step, start, chunks_first)
    outputs = outputs.transpose(1, 0, 3, 2, 4)  # [N, chunks, C, H, V]
    return outputs.reshape(rows, -1, *outputs.shape[3:])[:, :length], last


def decay_between(log_decay: Float[Array, "*B C"]) -> Float[Array, "*B C C"]:
    """Products of alpha after token i up to token t, at [t, i]; 0 for i > t.

    Each is the exponential of its own sum: differences of sums would lose the digits of slow decays
    after a fast one, and -inf - -inf is not a number.
    """
    token = jnp.arange(log_decay.shape[-1])
    is_after = token[:, None] > token
    sums = jnp.cumsum(jnp.where(is_after, log_decay[..., :, None], 0), axis=-2)
    return jnp.exp(jnp.where(is_after.T, -jnp.inf, sums))


@jax.custom_jvp
def inverse_of_unit_lower(lower: Float[Array, "*B C C"]) -> Float[Array, "*B C C"]:
    """(I + L)^-1 of a strictly lower triangular L, by halves:

        [A 0]^-1   [    A^-1        0  ]
        [B D]    = [-D^-1 B A^-1   D^-1]

    Both halves are one batch, so that this takes log2(C) pairs of products. On a CPU, XLA's
    triangular solve of a batch takes 4 times as long.
    """
    size = lower.shape[-1]
    half = (size + 1) // 2
    if size <= 2:
        return jnp.eye(size, dtype=lower.dtype) - lower
    lower = jnp.pad(lower, [(0, 0)] * (lower.ndim - 2) + [(0, 2 * half - size)] * 2)
    diagonal = jnp.stack([lower[..., :half, :half], lower[..., half:, half:]])
    first, second = inverse_of_unit_lower(diagonal)
    below = -_product(_product(second, lower[..., half:, :half]), first)
    inverse = jnp.block([[first, jnp.zeros_like(first)], [below, second]])
    return inverse[..., :size, :size]


@inverse_of_unit_lower.defjvp
def _inverse_tangent(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Tangent -X dL X of the inverse X."""
    inverse = inverse_of_unit_lower(*primals)
    return inverse, -_product(_product(inverse, tangents[0]), inverse)


def _product(a: Float[Array, "*B C C"], b: Float[Array, "*B C C"]) -> Float[Array, "*B C C"]:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def l2_normalize(x: Float[Array, "*B K"]) -> Float[Array, "*B K"]:
    """Divides x by sqrt(sum of squares + 1e-6)."""
    size = x.shape[-1]  # `standardize` takes the mean of the squares
    return standardize(x, False, 1e-6 / size) * size**-0.5


def _split_chunks(x: Float[Array, "N T H ..."], size: int) -> Float[Array, "N Z H C ..."]:
    """Splits rows into chunks, filled up with tokens that do not change the state."""
    missing = -x.shape[1] % size
    x = jnp.pad(x, [(0, missing if axis == 1 else 0) for axis in range(x.ndim)])
    return jnp.moveaxis(x.reshape(x.shape[0], -1, size, *x.shape[2:]), 3, 2)


@dataclasses.dataclass(frozen=True)
class GatedDeltaOptions:
    """Options of gated linear attention (Gated DeltaNet, Yang et al. 2024). The sizes of heads are
    `key_size` and `value_size`.

    Attributes:
      key_heads: heads of queries and keys, each shared by neighboring heads of values; None:
        num_heads.
      value_heads: heads of values, each with a state of its own; None: key_heads.
      convolution_width: tokens that the causal convolutions of queries, keys and values read.
      chunk_size: tokens of a chunk in training. Products within chunks cost O(T C) for T tokens.
    """

    key_heads: Heads | None = None
    value_heads: Heads | None = None
    convolution_width: Annotated[int, Range(1, 64)] = 4
    chunk_size: Annotated[int, Range(1, 1024)] = CHUNK_SIZE


class RecurrentCache(Cache):
    """State S of each head in float32, and what the convolutions of "query", "key" and "value"
    still read. Its size does not depend on the number of tokens."""

    state: Float[Array, "B J H V K"]
    inputs: Mapping[str, Recent]


class GatedDeltaNet(AttentionLayer):
    """Gated linear attention, with convolutions before it and a gate after it:

        q, k, v = SiLU(Convolution(x W)), q and k divided by their lengths, q also by sqrt(K)
        alpha   = exp(-exp(A_log) softplus(x W_alpha + dt_bias))
        beta    = sigmoid(x W_beta)
        y       = (RMSNorm(o) * SiLU(x W_gate)) W^O

    with o by the gated delta rule. The state is zero at the start of each sentence, and padding
    does not change it.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(r"(query|key|value)_taps", "vectors", ("taps", "heads", "size")),
        Parameter(r"output_gate/kernel", "matrix", ("model", "heads", "size")),
        Parameter(r"(decay|strength)/kernel", "matrix", ("model", "heads")),
        Parameter(r"(A_log|dt_bias)", "bias", ("heads",)),
        Parameter(r"norm_heads/scale", "scale", ("size",)),
    )
    options = GatedDeltaOptions
    position_hooks = ()
    bidirectional = False

    def setup(self) -> None:
        c = self.config
        axes = projected_axes(c)
        values = axes["value"]
        heads = values[:1]
        width = c.options_of(GatedDeltaOptions).convolution_width
        map_to = partial(Linear, (c.d_model,), use_bias=False, config=c, std=c.kernel_std)
        self.query = map_to(axes["query"])
        self.key = map_to(axes["key"])
        self.value = map_to(values)
        self.taps = {
            name: self.param(f"{name}_taps", _initial_taps, (width, *shape))
            for name, shape in axes.items()
        }
        self.decay = map_to(heads, exact=True)
        self.strength = map_to(heads, exact=True)
        self.A_log = self.param("A_log", _initial_rates, heads)
        self.dt_bias = self.param("dt_bias", _initial_steps, heads)
        self.output_gate = map_to(values)
        self.norm_heads = RMSNorm(c.norm_epsilon)
        std = c.residual_std(self.num_sublayers)
        self.output = Linear(values, (c.d_model,), False, c, std)

    @classmethod
    def init_cache(cls, config: TransformerConfig, rows: int, max_length: int) -> RecurrentCache:
        axes = projected_axes(config)
        count = config.options_of(GatedDeltaOptions).convolution_width - 1
        state = jnp.zeros((rows, 1, *axes["value"], config.d_k), jnp.float32)
        inputs = {
            name: Recent.empty(rows, count, shape, activation_dtype(config), False)
            for name, shape in axes.items()
        }
        return RecurrentCache(jnp.zeros(rows, jnp.int32), state, inputs)

    def self_attend(
        self, x: Features, sequences: Sequences, deterministic: bool, cache: Cache | None = None
    ) -> tuple[Features, Cache | None]:
        assert cache is None or isinstance(cache, RecurrentCache)
        state = None if cache is None else cache.state.reshape(len(x), *cache.state.shape[2:])
        recent: Mapping[str, Recent | None] = (
            dict.fromkeys(self.taps) if cache is None else cache.inputs
        )
        query, recent_queries = self.convolve("query", self.query(x), sequences, recent)
        key, recent_keys = self.convolve("key", self.key(x), sequences, recent)
        value, recent_values = self.convolve("value", self.value(x), sequences, recent)
        log_decay, strength = self.gates(x, sequences)
        query = self.expose("queries", nn.silu(query), _HEAD_AXES, position=sequences.positions)
        key = self.expose("keys", nn.silu(key), _HEAD_AXES, position=sequences.positions)
        value = self.expose("values", nn.silu(value), _HEAD_AXES, position=sequences.positions)
        heads, state = self.read(query, key, value, log_decay, strength, state)
        heads = self.norm_heads(heads) * nn.silu(self.output_gate(x).astype(jnp.float32))
        if cache is not None:
            cache = cache.replace(
                length=cache.length + x.shape[1],
                state=state.reshape(cache.state.shape),
                inputs={"query": recent_queries, "key": recent_keys, "value": recent_values},
            )
        heads = self.expose("heads", heads, _HEAD_AXES)
        return self.output(heads), cache

    def convolve(
        self,
        name: str,
        x: Float[Array, "N T H X"],
        sequences: Sequences,
        recent: Mapping[str, Recent | None],
    ) -> tuple[Float[Array, "N T H X"], Recent | None]:
        """Sum of the last W tokens, each feature weighted by its taps: the last one weighs the
        token itself. Also returns the last tokens, for a cache."""
        taps = self.taps[name][::-1]
        tokens, last = sequences.look_back(x, len(taps) - 1, recent[name])
        products = (tap * token for tap, token in zip(taps, tokens, strict=True))
        return sum(products, start=jnp.zeros(())), last

    def gates(
        self, x: Features, sequences: Sequences
    ) -> tuple[Float[Array, "N T H"], Float[Array, "N T H"]]:
        """log alpha and beta of each token: -inf at the start of a sentence, 0 and 0 at padding."""
        log_decay = -jnp.exp(self.A_log) * nn.softplus(self.decay(x) + self.dt_bias)
        log_decay = self.expose("log_decay", log_decay, ("position", "head"))
        strength = self.expose("strength", nn.sigmoid(self.strength(x)), ("position", "head"))
        log_decay = jnp.where((sequences.positions == 0)[..., None], -jnp.inf, log_decay)
        if sequences.real is not None:
            real = sequences.real[..., None]
            log_decay = jnp.where(real, log_decay, 0)
            strength = jnp.where(real, strength, 0)
        return log_decay, strength

    def read(
        self,
        query: Float[Array, "N T G K"],
        key: Float[Array, "N T G K"],
        value: Float[Array, "N T H V"],
        log_decay: Float[Array, "N T H"],
        strength: Float[Array, "N T H"],
        state: Float[Array, "N H V K"] | None,
    ) -> tuple[Float[Array, "N T H V"], Float[Array, "N H V K"]]:
        """The gated delta rule, one token at a time while decoding."""
        query = l2_normalize(query) / math.sqrt(query.shape[-1])
        shared = value.shape[2] // key.shape[2]
        query, key = (jnp.repeat(x, shared, axis=2) for x in (query, l2_normalize(key)))
        inputs = (query, key, value, log_decay, strength)
        if state is not None and query.shape[1] == 1:
            state, heads = delta_rule_step(state, *(x[:, 0] for x in inputs))
            return heads[:, None], state
        size = self.config.options_of(GatedDeltaOptions).chunk_size
        dtype = product_dtype(self.config.dtype)
        return chunked_delta_rule(*inputs, state, chunk_size=size, dtype=dtype)


def projected_axes(config: TransformerConfig) -> dict[str, tuple[int, int]]:
    """Axes (heads, size) of queries, keys and values."""
    options = config.options_of(GatedDeltaOptions)
    key_heads = options.key_heads or config.num_heads
    value_heads = options.value_heads or key_heads
    if value_heads % key_heads:
        raise ValueError(
            f"gated_delta.key_heads {key_heads} does not divide value_heads {value_heads}"
        )
    keys = (key_heads, config.d_k)
    return {"query": keys, "key": keys, "value": (value_heads, config.d_v)}


def _initial_taps(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "W H X"]:
    return jax.random.uniform(key, shape, minval=-1, maxval=1) * shape[0] ** -0.5


def _initial_rates(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, " H"]:
    """A_log: log of rates up to 16, as in Mamba-2 (Dao and Gu 2024)."""
    return jnp.log(jax.random.uniform(key, shape, minval=0.01, maxval=16))


def _initial_steps(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, " H"]:
    """dt_bias: inverse softplus of step sizes from 0.001 to 0.1 on a log scale, as in Mamba-2."""
    step = jnp.exp(jax.random.uniform(key, shape, minval=jnp.log(1e-3), maxval=jnp.log(0.1)))
    return jnp.log(jnp.expm1(step))
