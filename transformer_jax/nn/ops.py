# SPDX-License-Identifier: Apache-2.0
"""Matrix products and their dtype, the products and scores of attention, softmax and soft cap.

If the hardware multiplies bfloat16 (`platform.has_bfloat16_products`), `einsum` rounds both
operands to bfloat16, the cotangent in the backward pass, and the result, after a sum in float32.
Not rounded are results of `exact` products (logits outside of training) and, on accelerators,
gradients of parameters. Products in float32 have full precision there too, not the lower default.

Queries have H heads; keys and values have G, which divides H. Heads that share a key count as more
queries of that key's head, so that no key is repeated in memory. Operands are permuted to the
cache's layout, so that neither gradients nor the cache need a transpose.

B batch, T queries, S keys, K key size of a head, V value size of a head.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from transformer_jax.runtime import platform

DTYPES = ("auto", "float32", "bfloat16")


def product_dtype(name: str) -> jnp.dtype:
    """Dtype of matrix products for a config's `model.dtype`; "auto" depends on the device."""
    if name == "auto":
        name = "bfloat16" if platform.has_bfloat16_products() else "float32"
    return jnp.dtype(name)


def dtype_for_rows(rows: int, dtype: DTypeLike) -> jnp.dtype:
    """Dtype of a batched product with `rows` rows per matrix.

    On a CPU float32 for one row (a new token against cached keys), which XLA multiplies in a scalar
    loop in bfloat16 (experiments/results/speed.md); otherwise `dtype`.
    """
    return jnp.dtype(jnp.float32 if rows == 1 and platform.is_cpu() else dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 3, 4))
def einsum(
    subscripts: str,
    a: Float[Array, "..."],
    b: Float[Array, "..."],
    dtype: DTypeLike,
    exact: bool = False,
) -> Float[Array, "..."]:
    """Computes `jnp.einsum` of two operands, which are rounded to `dtype`, as are their cotangent
    and the result; sums and the dtype of the result are float32.

    Args:
      exact: the result is not rounded to `dtype`. Rounded logits are often equal: the two largest
        of 32,000 in 3.5% of rows.

    Example:
      >>> einsum("btd,df->btf", x, kernel, jnp.bfloat16)
    """
    return product(subscripts, a.astype(dtype), b.astype(dtype), dtype, exact)


@einsum.defjvp
def _einsum_tangent(
    subscripts: str,
    dtype: DTypeLike,
    exact: bool,
    primals: tuple[Array, Array],
    tangents: tuple[Array, Array],
) -> tuple[Array, Array]:
    """Two products, each linear in one tangent. The backward pass keeps only the rounded operands,
    and adds up gradients in float32."""
    a, b = (operand.astype(dtype) for operand in primals)
    tangent_a = product(subscripts, tangents[0], b, dtype)
    # The second operand is the parameter, if one is. Devices and micro-batches add up its gradient,
    # which is small beside activations: float32 costs an accelerator little.
    tangent_b = product(subscripts, a, tangents[1], dtype, exact=not platform.is_cpu())
    return product(subscripts, a, b, dtype, exact), tangent_a + tangent_b


def product(subscripts: str, a: Array, b: Array, dtype: DTypeLike, exact: bool = False) -> Array:
    """Product in `dtype`, as of `einsum`; JAX differentiates it into products in `dtype`."""
    is_rounded = jnp.dtype(dtype) == jnp.bfloat16 and not exact
    if not platform.is_cpu() and not is_rounded:
        # Operands are cast by the product itself, so that it may read a float32 cotangent.
        precision = _PRECISIONS[jnp.dtype(dtype)]
        return jnp.einsum(subscripts, a, b, precision=precision, preferred_element_type=jnp.float32)
    # One dtype for operands, result and so the cotangent: oneDNN multiplies no other, and a GPU
    # writes half the bytes and needs no kernel that rounds them (experiments/results/devices.md).
    a = a.astype(dtype)
    b = b.astype(dtype)
    result_dtype = jnp.float32 if exact else dtype
    sums = jnp.einsum(subscripts, a, b, preferred_element_type=result_dtype)
    return sums.astype(jnp.float32)


_PRECISIONS: dict[jnp.dtype, jax.lax.Precision | jax.lax.DotAlgorithmPreset] = {
    jnp.dtype(jnp.float32): jax.lax.Precision.HIGHEST,
    jnp.dtype(jnp.bfloat16): jax.lax.DotAlgorithmPreset.BF16_BF16_F32,
}


def head_products(
    query: Float[Array, "B T H K"], key: Float[Array, "B S G K"], dtype: DTypeLike
) -> Float[Array, "B H T S"]:
    """Computes Q K^T of each head."""
    b, t, h, k = query.shape
    groups = key.shape[2]
    query = query.reshape(b, t, groups, h // groups, k).transpose(0, 3, 1, 2, 4)
    query = query.reshape(b, h // groups * t, groups, k)  # heads of a group are more queries
    key = jnp.moveaxis(key, 1, 2)  # [B, G, S, K]
    dtype = dtype_for_rows(query.shape[1], dtype)
    return einsum("bthk,bhsk->bhts", query, key, dtype).reshape(b, h, t, -1)


def head_outputs(
    weights: Float[Array, "B H T S"], value: Float[Array, "B S G V"], dtype: DTypeLike
) -> Float[Array, "B T H V"]:
    """Sums the values of each head, weighted by its attention weights."""
    b, h, t, s = weights.shape
    groups, v = value.shape[2:]
    weights = weights.reshape(b, groups, h // groups * t, s)
    value = jnp.moveaxis(value, 1, 2)  # [B, G, S, V]
    dtype = dtype_for_rows(weights.shape[2], dtype)
    sums = einsum("bhts,bhsv->bhtv", weights, value, dtype)
    sums = sums.reshape(b, groups, h // groups, t, v).transpose(0, 3, 1, 2, 4)
    return sums.reshape(b, t, h, v)


@jax.checkpoint
def additive_scores(
    query: Float[Array, "*B T K"], key: Float[Array, "*B S K"], energy: Float[Array, "..."]
) -> Float[Array, "*B T S"]:
    """v . tanh(q_t + k_s) of all pairs (Bahdanau et al. 2015), with v [..., K] for the axes *B. The
    gradient computes the hyperbolic tangents again instead of keeping [*B, T, S, K]."""
    query = query.astype(jnp.float32)[..., :, None, :]
    key = key.astype(jnp.float32)[..., None, :, :]
    return (jnp.tanh(query + key) * energy[..., None, None, :]).sum(-1)


@jax.custom_jvp
def softmax(
    logits: Float[Array, "*B S"], mask: Bool[Array, "..."] | None = None
) -> Float[Array, "*B S"]:
    """Softmax over the last axis (equation 1); 0 where the mask is False, in whole rows too.

    Its derivatives need only the result. On a CPU a masked `jax.nn.softmax` takes twice as long
    (experiments/results/speed.md).
    """
    if mask is not None:
        logits = jnp.where(mask, logits, -jnp.inf)
    limits = jnp.finfo(logits.dtype)
    # The two limits keep a fully masked row at 0 / tiny = 0, where -inf - -inf and 0 / 0 are NaN.
    exponentials = jnp.exp(logits - jnp.maximum(logits.max(-1, keepdims=True), limits.min))
    return exponentials / jnp.maximum(exponentials.sum(-1, keepdims=True), limits.tiny)


@softmax.defjvp
def _softmax_tangent(
    primals: tuple[Array, Array | None], tangents: tuple[Array, Any]
) -> tuple[Array, Array]:
    weights = softmax(*primals)
    dlogits = tangents[0]
    return weights, weights * (dlogits - (weights * dlogits).sum(-1, keepdims=True))


def soft_cap(logits: Float[Array, "*B S"], cap: float | None) -> Float[Array, "*B S"]:
    """Computes c tanh(x / c) of each logit x, which stays below c (Gemma 2, 2024); None: no cap."""
    return logits if cap is None else cap * jnp.tanh(logits / cap)


@jax.custom_vjp
def with_gradient(x: Array, parameter: Array, gradient: Array) -> Array:
    """Returns x, and gives a parameter this gradient, whatever x is used for. So a module hands
    what it counts to the optimizer, added up over micro-batches and devices."""
    return x


with_gradient.defvjp(
    lambda x, parameter, gradient: (x, gradient),
    lambda gradient, cotangent: (cotangent, gradient, jnp.zeros_like(gradient)),
)
