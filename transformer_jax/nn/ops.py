"""Matrix products and the dtype that they run in.

Parameters, activations, softmax, norms, losses and the optimizer stay in float32; only matrix
products change. Where the hardware multiplies bfloat16 (`platform.has_bfloat16_products`), `einsum`
rounds both operands to bfloat16, and the cotangent in the backward pass, so that all three products
of a layer run on these units. Their sums are float32, and so are their results, except on CPUs.
Products in float32 are float32 on accelerators too, whose own default is less.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from transformer_jax.runtime import platform

DTYPES = ("auto", "float32", "bfloat16")
TILE_ROWS = 16  # rows that AMX multiplies at once


def product_dtype(name: str) -> jnp.dtype:
    """Dtype of the products under a config's `model.dtype`; "auto" asks the device.

    Raises:
      ValueError: `name` is none of DTYPES.
    """
    if name not in DTYPES:
        raise ValueError(f"dtype is {name!r}, not one of {', '.join(DTYPES)}")
    if name == "auto":
        name = "bfloat16" if platform.has_bfloat16_products() else "float32"
    return jnp.dtype(name)


def dtype_for_rows(rows: int, dtype: DTypeLike) -> jnp.dtype:
    """Dtype of a batched product with `rows` rows per matrix.

    On a CPU, float32 below TILE_ROWS (one new token against cached keys), where casting the matrix
    costs more than it saves; else `dtype`.
    """
    return jnp.dtype(jnp.float32 if rows < TILE_ROWS and platform.is_cpu() else dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 3))
def einsum(
    subscripts: str, a: Float[Array, "..."], b: Float[Array, "..."], dtype: DTypeLike
) -> Float[Array, "..."]:
    """A `jnp.einsum` of two operands, which are rounded to `dtype` first, as is the cotangent.

    The result is float32; products accumulate in float32.

    Example:
      >>> einsum("btd,df->btf", x, kernel, jnp.bfloat16)
    """
    return _product(subscripts, a.astype(dtype), b.astype(dtype), dtype)


@einsum.defjvp
def _einsum_tangent(
    subscripts: str, dtype: DTypeLike, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Two products, each linear in one tangent. Only the operands as they were multiplied are kept
    for a backward pass, and what it adds up is float32."""
    a, b = (operand.astype(dtype) for operand in primals)
    of_a = _product(subscripts, tangents[0], b, dtype)
    of_b = _product(subscripts, a, tangents[1], dtype)
    return _product(subscripts, a, b, dtype), of_a + of_b


def _product(subscripts: str, a: Array, b: Array, dtype: DTypeLike) -> Array:
    """A product in `dtype` whose derivatives are products in `dtype`, by JAX's own rules."""
    if platform.is_cpu():
        # oneDNN's products have one dtype; that of the result becomes the cotangent's.
        a, b = a.astype(dtype), b.astype(dtype)
        return jnp.einsum(subscripts, a, b, preferred_element_type=dtype).astype(jnp.float32)
    precision = _PRECISIONS[jnp.dtype(dtype)]
    return jnp.einsum(subscripts, a, b, precision=precision, preferred_element_type=jnp.float32)


_PRECISIONS: dict[jnp.dtype, jax.lax.Precision | jax.lax.DotAlgorithmPreset] = {
    jnp.dtype(jnp.float32): jax.lax.Precision.HIGHEST,
    jnp.dtype(jnp.bfloat16): jax.lax.DotAlgorithmPreset.BF16_BF16_F32,
}


# FOLDED nn.heads: Products of heads: of queries with keys, and of weights with values. Queries
# have H heads; keys and values have G, which divides H: one for each (Vaswani et al. 2017), one
# for a group of H / G neighbors (Ainslie et al. 2023) or one for all (Shazeer 2019). Heads that
# share a key count as further queries of that key's head, so that no key is repeated in memory.
# Operands are permuted to the cache's layout, so neither gradients nor cache need a transpose. B
# batch, T queries, S keys, K key size of a head, V value size of a head.


def head_products(
    query: Float[Array, "B T H K"], key: Float[Array, "B S G K"], dtype: DTypeLike
) -> Float[Array, "B H T S"]:
    """Q K^T of each head."""
    b, t, h, k = query.shape
    groups = key.shape[2]
    query = query.reshape(b, t, groups, h // groups, k).transpose(0, 3, 1, 2, 4)
    query = query.reshape(b, h // groups * t, groups, k)
    key = jnp.moveaxis(key, 1, 2)  # [B, G, S, K]
    dtype = dtype_for_rows(query.shape[1], dtype)
    return einsum("bthk,bhsk->bhts", query, key, dtype).reshape(b, h, t, -1)


def head_sums(
    weights: Float[Array, "B H T S"], value: Float[Array, "B S G V"], dtype: DTypeLike
) -> Float[Array, "B T H V"]:
    """The sums of values under weights, for each head."""
    b, h, t, s = weights.shape
    groups, v = value.shape[2:]
    weights = weights.reshape(b, groups, h // groups * t, s)
    value = jnp.moveaxis(value, 1, 2)  # [B, G, S, V]
    dtype = dtype_for_rows(weights.shape[2], dtype)
    sums = einsum("bhts,bhsv->bhtv", weights, value, dtype)
    sums = sums.reshape(b, groups, h // groups, t, v).transpose(0, 3, 1, 2, 4)
    return sums.reshape(b, t, h, v)


# FOLDED nn.softmax: The softmax of attention (equation 1), with a mask, and a cap for logits. S
# keys.


@jax.custom_jvp
def softmax(
    logits: Float[Array, "*B S"], mask: Bool[Array, "..."] | None = None
) -> Float[Array, "*B S"]:
    """The softmax over the elements of the last axis where `mask` is True; the others are 0, and so
    is a row without any. Its derivatives need only the result.

    With a mask `jax.nn.softmax` takes twice as long on a CPU (experiments/results/speed.md).
    """
    if mask is not None:
        logits = jnp.where(mask, logits, -jnp.inf)
    limits = jnp.finfo(logits.dtype)
    exponentials = jnp.exp(logits - jnp.maximum(logits.max(-1, keepdims=True), limits.min))
    return exponentials / jnp.maximum(exponentials.sum(-1, keepdims=True), limits.tiny)


@softmax.defjvp
def _softmax_tangent(
    primals: tuple[Array, Array | None], tangents: tuple[Array, Any]
) -> tuple[Array, Array]:
    weights, change = softmax(*primals), tangents[0]
    return weights, weights * (change - (weights * change).sum(-1, keepdims=True))


def capped(logits: Float[Array, "*B S"], cap: float | None) -> Float[Array, "*B S"]:
    """c tanh(x / c) of each logit x, which stays below c (Gemma 2, 2024); with None, x."""
    return logits if cap is None else cap * jnp.tanh(logits / cap)
