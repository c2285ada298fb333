# SPDX-License-Identifier: Apache-2.0
"""Ring attention (Liu et al. 2023): attention within rows whose tokens are divided among devices.

Each of N devices has T / N tokens of a row. It attends with its queries to its own keys, then to
those of its neighbor, and so on: keys and values travel around the ring. No device ever holds the
keys of a whole row, or more than a block of weights. For query i and key j of any block, with
logits s_ij (equation 1 of Vaswani et al. 2017),

    m_i = max_j s_ij        l_i = sum_j exp(s_ij - m_i)        o_i = sum_j exp(s_ij - m_i) v_j / l_i

and when a block raises m_i to m'_i, the sums of the blocks before it are multiplied by
exp(m_i - m'_i). The backward pass computes the weights p_ij of a block again from the logarithm
L_i = m_i + log l_i (Dao et al. 2022), while keys and their gradients travel around the ring:

    p_ij = exp(s_ij - L_i)      dv_j = sum_i p_ij do_i      ds_ij = p_ij (do_i v_j - do_i o_i)

Which keys a query sees depends on segment ids and positions, which travel with the keys: any order
of the tokens is right. Blocks that no query sees are skipped.

B batch, T queries and S keys (of a device, or of a block), H heads, G heads of keys and values, K
key size of a head, V value size of a head.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped

from transformer_jax.nn import per_device
from transformer_jax.nn.attention_inputs import AttentionInputs, Heads
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.masks import Segments
from transformer_jax.nn.per_device import LentAxis
from transformer_jax.nn.positions import encoding_class

BLOCK = 512
"""Most queries, and most keys, of a block."""


class Queries(struct.PyTreeNode):
    """Queries of a device, or a block of them."""

    query: Float[Array, "B T H K"]
    positions: Int[Array, "B T"]
    segment_ids: Int[Array, "B T"]


class Keys(struct.PyTreeNode):
    """Keys and values that travel around the ring, or a block of them."""

    key: Float[Array, "B S G K"]
    value: Float[Array, "B S G V"]
    positions: Int[Array, "B S"]
    segment_ids: Int[Array, "B S"]


@dataclasses.dataclass(frozen=True)
class Ring:
    """Attention of a device's queries to the keys of all devices of its ring.

    Attributes:
      logits: (query, key, bias) -> logits [B, H, T, S].
      outputs: (weights [B, H, T, S], value) -> [B, T, H, V].
      bias: (distance [B, T, S], *parameters) -> bias of the logits of all heads, or None.
      causal: a query sees no key at a later position.
      window: a query sees only keys less than this many positions away; None: no limit.
      size: N; 1: the device has all keys.
      tensor: axis of the mesh that divides the heads; None: the device has all heads.
    """

    logits: Callable[[Array, Array, Array | None], Float[Array, "B H T S"]]
    outputs: Callable[[Array, Array], Heads]
    bias: Callable[..., Float[Array, "B H T S"] | None]
    causal: bool
    window: int | None
    axis: Any
    size: int
    tensor: Any

    def inputs(self, queries: Queries, keys: Keys) -> AttentionInputs:
        return AttentionInputs(
            queries.query,
            keys.key,
            keys.value,
            mask=None,
            query_positions=queries.positions,
            key_positions=keys.positions,
            segments=Segments(queries.segment_ids, keys.segment_ids, self.causal),
            window=self.window,
        )

    def masked_logits(
        self, inputs: AttentionInputs, mask: Bool[Array, "B 1 T S"], parameters: Sequence[Array]
    ) -> Float[Array, "B H T S"]:
        """s_ij of a block; -inf where query i does not see key j."""
        bias = self.bias(inputs.distance, *parameters)
        num_heads = inputs.query.shape[2]
        if bias is not None and bias.shape[1] != num_heads:  # devices divide the heads
            first = jax.lax.axis_index(self.tensor) * num_heads
            bias = jax.lax.dynamic_slice_in_dim(bias, first, num_heads, axis=1)
        return jnp.where(mask, self.logits(inputs.query, inputs.key, bias), -jnp.inf)

    def pass_on(self, tree: Any) -> Any:
        """Sends arrays to the next device of the ring; returns those of the device before."""
        if self.size == 1:
            return tree
        pairs = [(i, (i + 1) % self.size) for i in range(self.size)]
        return jax.tree.map(lambda x: jax.lax.ppermute(x, self.axis, pairs), tree)

    def for_each_block(self, update: Callable, sums: Any, queries: Any, keys: Keys) -> Any:
        """Updates sums with each block of queries and each block of keys that it sees.

        Args:
          update: (sums, queries, keys, inputs, mask) -> sums, all of the two blocks.
          sums: (of queries, of keys, of neither); arrays [B, T, ...] and [B, S, ...].
        """
        rows = _block_size(queries[0].positions.shape[1])
        columns = _block_size(keys.positions.shape[1])
        num_query_blocks = queries[0].positions.shape[1] // rows
        num_key_blocks = keys.positions.shape[1] // columns

        def step(index: Int[Array, ""], sums: Any) -> Any:
            i = index // num_key_blocks * rows
            j = index % num_key_blocks * columns
            of_queries, of_keys, total = sums
            block_sums = _take(of_queries, i, rows), _take(of_keys, j, columns), total
            query_block = _take(queries, i, rows)
            key_block = _take(keys, j, columns)
            inputs = self.inputs(query_block[0], key_block)
            mask = inputs.windowed_mask
            block_sums = jax.lax.cond(
                mask.any(),
                update,
                lambda sums, *_: sums,  # no query of the block sees a key: nothing to compute
                *(block_sums, query_block, key_block, inputs, mask),
            )
            of_queries = _put(of_queries, block_sums[0], i)
            of_keys = _put(of_keys, block_sums[1], j)
            return of_queries, of_keys, block_sums[2]

        return _repeat(num_query_blocks * num_key_blocks, step, sums)


class Sums(struct.PyTreeNode):
    """Sums over the keys that queries have met.

    Attributes:
      values: l_i o_i, [B, T, H, V].
      weights: l_i, [B, T, H].
      largest: m_i, [B, T, H]; above -inf, so that differences are defined.
    """

    values: Heads
    weights: Float[Array, "B T H"]
    largest: Float[Array, "B T H"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def ring_attention(ring: Ring, queries: Queries, keys: Keys, parameters: Sequence[Array]) -> Heads:
    """Outputs of a device's queries for its own keys and those of the other devices; zeros for a
    query without any key. `parameters` are those of the bias."""
    return _forward(ring, queries, keys, parameters)[0]


def _forward(
    ring: Ring, queries: Queries, keys: Keys, parameters: Sequence[Array]
) -> tuple[Heads, Any]:
    """The heads, and what `_backward` reads."""

    def attend(sums: Any, _: Any, keys: Keys, inputs: AttentionInputs, mask: Array) -> Any:
        old: Sums = sums[0]  # of queries alone; the two others are empty
        logits = ring.masked_logits(inputs, mask, parameters)
        largest = jnp.maximum(old.largest, _swap(logits.max(-1)))
        weights = jnp.exp(logits - _swap(largest)[..., None])
        scale = jnp.exp(old.largest - largest)
        values = scale[..., None] * old.values + ring.outputs(weights, keys.value)
        return Sums(values, scale * old.weights + _swap(weights.sum(-1)), largest), (), ()

    def step(_: Any, carry: tuple[Sums, Keys]) -> tuple[Sums, Keys]:
        sums, keys = carry
        sums, *_ = ring.for_each_block(attend, (sums, (), ()), (queries,), keys)
        return sums, ring.pass_on(keys)

    limits = jnp.finfo(jnp.float32)
    shape = queries.query.shape[:3]
    no_values = jnp.zeros((*shape, keys.value.shape[3]), jnp.float32)
    empty = Sums(no_values, jnp.zeros(shape, jnp.float32), jnp.full(shape, limits.min))
    sums, _ = _repeat(ring.size, step, (empty, keys))
    weights = jnp.maximum(sums.weights, limits.tiny)  # zeros, not NaN, for a query without keys
    heads = sums.values / weights[..., None]
    log_sums = sums.largest + jnp.log(weights)  # L_i
    return heads, (queries, keys, parameters, heads, log_sums)


def _backward(ring: Ring, saved: Any, gradient: Heads) -> tuple[Queries, Keys, Any]:
    """Gradients of queries, keys and parameters; the sums of each block are these three."""
    queries, keys, parameters, heads, log_sums = saved

    def add(sums: Any, queries: Any, keys: Keys, inputs: AttentionInputs, mask: Array) -> Any:
        _, gradient, products, log_sums = queries

        def logits_of(query: Array, key: Array, parameters: Sequence[Array]) -> Array:
            return ring.masked_logits(inputs.replace(query=query, key=key), mask, parameters)

        logits, logits_vjp = jax.vjp(logits_of, inputs.query, keys.key, parameters)
        weights = jnp.exp(logits - _swap(log_sums)[..., None])  # p_ij
        _, outputs_vjp = jax.vjp(ring.outputs, weights, keys.value)
        weights_gradient, value_gradient = outputs_vjp(gradient)  # do_i v_j, dv_j
        logits_gradient = weights * (weights_gradient - _swap(products)[..., None])
        query_gradient, key_gradient, of_parameters = logits_vjp(logits_gradient)
        return jax.tree.map(
            jnp.add, sums, (query_gradient, (key_gradient, value_gradient), of_parameters)
        )

    def step(_: Any, carry: Any) -> Any:
        of_queries, of_keys, total, keys = carry
        sums = of_queries, of_keys, total
        of_queries, of_keys, total = ring.for_each_block(add, sums, of_each_query, keys)
        return of_queries, ring.pass_on(of_keys), total, ring.pass_on(keys)

    products = (gradient * heads).sum(-1)  # do_i o_i
    of_each_query = queries, gradient, products, log_sums
    differentiated = queries.query, (keys.key, keys.value), parameters
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), differentiated)
    *sums, _ = _repeat(ring.size, step, (*zeros, keys))
    of_query, (of_key, of_value), total = jax.tree.map(
        lambda x, y: x.astype(y.dtype), sums, [*differentiated]
    )
    tokens = {"positions": None, "segment_ids": None}
    return (
        queries.replace(query=of_query, **tokens),
        keys.replace(key=of_key, value=of_value, **tokens),
        total,
    )


ring_attention.defvjp(_forward, _backward)


def attend(
    inputs: AttentionInputs,
    logits: Callable[[Array, Array, Array | None], Float[Array, "B H T S"]],
    outputs: Callable[[Array, Array], Heads],
    bias: Callable[[Int[Array, "B T S"]], Float[Array, "B H T S"] | None] | None = None,
) -> Heads:
    """Attention within rows whose tokens are divided among the devices of the axis "sequence".

    Keys travel around the ring, unless those of a whole row are no larger than the queries of a
    device, or come from another stack: then each device gathers them.
    """
    lent = per_device.axis("sequence")
    tensor = per_device.axis("heads")
    segments = inputs.segments
    assert lent is not None and segments is not None
    query_positions = inputs.query_positions
    key_positions = inputs.key_positions
    is_cross = query_positions is None
    if query_positions is None or key_positions is None:  # in cross-attention any will do
        query_positions = jnp.zeros_like(segments.query)
        key_positions = jnp.zeros_like(segments.key)
    gathers = is_cross or lent.size * inputs.key.shape[2] <= inputs.query.shape[2]
    block = _local_block(inputs, lent, gathers)
    with jax.disable_jit():  # a jitted function would keep the mesh outside of `shard_map`
        distance = jnp.zeros(block, jnp.int32)
        # What the bias closes over becomes an argument, so that it gets a gradient.
        bias, parameters = jax.closure_convert(bias or (lambda _: None), distance)
    ring = Ring(
        logits,
        outputs,
        bias,
        causal=segments.causal,
        window=inputs.window,
        axis=lent.name,
        size=1 if gathers else lent.size,
        tensor=tensor and tensor.name,
    )

    def on_device(queries: Queries, keys: Keys, parameters: Sequence[Array]) -> Heads:
        if gathers:
            gather = functools.partial(jax.lax.all_gather, axis_name=lent.name, axis=1, tiled=True)
            keys = jax.tree.map(gather, keys)
        return ring_attention(ring, queries, keys, parameters)

    queries = Queries(inputs.query, query_positions, segments.query)
    keys = Keys(inputs.key, inputs.value, key_positions, segments.key)
    head_axes = "rows sequence heads size"
    token_axes = "rows sequence"
    axes = jax.tree.map(lambda x: head_axes if x.ndim == 4 else token_axes, (queries, keys))
    run = lent.shard_map(on_device, (*axes, [""] * len(parameters)), head_axes)
    return run(queries, keys, parameters)


def divides(inputs: AttentionInputs, config: TransformerConfig) -> bool:
    """Returns True if devices divide the tokens of these packed rows."""
    lent = per_device.axis("sequence")
    if lent is None or inputs.segments is None or unsupported_reason(config):
        return False
    return not (inputs.query.shape[1] % lent.size or inputs.key.shape[1] % lent.size)


def unsupported_reason(config: TransformerConfig) -> str | None:
    """Says why devices cannot divide the tokens of rows; None if they can."""
    if encoding_class(config).has("logit_bias", "extra_values"):
        return (
            f"positions {config.positions!r} look up content by distance; take rotary, alibi, t5, "
            "learned, sinusoidal or none"
        )
    if config.attention_dropout_rate > 0:
        return "it has dropout on weights; set attention_dropout_rate to 0"
    return None


def balance[Tree](tree: Tree) -> Tree:
    """Reorders the tokens of causal rows, arrays [B, T], so that devices have the same work.

    Of 2 N chunks of a row, device i gets chunk i, whose tokens see few keys, and chunk 2 N - 1 - i,
    whose tokens see many. No change if devices do not divide the tokens.
    """

    def reorder(x: Shaped[Array, "B T"]) -> Shaped[Array, "B T"]:
        lent = _balancing_axis(x)
        if lent is None:
            return x
        chunks = x.reshape(len(x), 2 * lent.size, -1)
        order = [(i, 2 * lent.size - 1 - i) for i in range(lent.size)]
        return jnp.take(chunks, np.ravel(order), axis=1).reshape(x.shape)

    return jax.tree.map(reorder, tree)


def restore_order(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Inverse of `balance` for the features of the tokens: each device sends its two chunks."""
    lent = _balancing_axis(x)
    if lent is None:
        return x
    owner = [min(chunk, 2 * lent.size - 1 - chunk) for chunk in range(2 * lent.size)]

    def on_device(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        chunks = jnp.split(x, 2, axis=1)  # i and 2 N - 1 - i: one even, one odd
        is_even = jax.lax.axis_index(lent.name) % 2 == 0
        even, odd = (jnp.where(is_even, *pair) for pair in (chunks, chunks[::-1]))
        received = [  # device i gets the chunks 2 i and 2 i + 1
            jax.lax.ppermute(x, lent.name, [(owner[2 * i + k], i) for i in range(lent.size)])
            for k, x in enumerate((even, odd))
        ]
        return jnp.concatenate(received, axis=1)

    tokens = "rows sequence features"
    return lent.shard_map(on_device, (tokens,), tokens)(x)


def _balancing_axis(x: Shaped[Array, "B T ..."]) -> LentAxis | None:
    """Axis of the devices that divide rows into 2 N chunks; None if none do."""
    lent = per_device.axis("sequence")
    if lent is None or x.shape[1] % (2 * lent.size):
        return None
    return lent


def _local_block(inputs: AttentionInputs, lent: LentAxis, gathers: bool) -> tuple[int, int, int]:
    """Rows, queries and keys of a block on a device."""
    shards = per_device.axis("rows")
    num_rows = len(inputs.query) // (shards.size if shards else 1)
    num_queries = inputs.query.shape[1] // lent.size
    num_keys = inputs.key.shape[1] // (1 if gathers else lent.size)
    return num_rows, _block_size(num_queries), _block_size(num_keys)


def _block_size(length: int) -> int:
    """Largest divisor of a length up to `BLOCK`."""
    return next(size for size in range(min(length, BLOCK), 0, -1) if length % size == 0)


def _take(tree: Any, start: Int[Array, ""], size: int) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size, axis=1), tree)


def _put(tree: Any, block: Any, start: Int[Array, ""]) -> Any:
    put = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=1)
    return jax.tree.map(lambda x, new: put(x, new, start), tree, block)


def _repeat[Carry](count: int, body: Callable[[Array, Carry], Carry], carry: Carry) -> Carry:
    """`jax.lax.fori_loop` as a while loop: scanned and rematerialized layers would take a loop of
    known length apart, compute the masks and slices of all blocks at once, and keep them."""

    def step(state: tuple[Array, Carry]) -> tuple[Array, Carry]:
        index, carry = state
        return index + 1, body(index, carry)

    return jax.lax.while_loop(lambda state: state[0] < count, step, (jnp.int32(0), carry))[1]


def _swap(x: Array) -> Array:
    """Between numbers of each token [B, T, H] and of each head [B, H, T]."""
    return jnp.swapaxes(x, 1, 2)
