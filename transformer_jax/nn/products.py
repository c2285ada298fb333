"""Matrix products and the dtype that they run in.

Parameters, activations, softmax, norms, losses and the optimizer stay in float32; only matrix
products change. Where the hardware multiplies bfloat16 (GPU, TPU, CPUs with AMX), `einsum` casts
both operands to bfloat16, and the cotangent in the backward pass, so that all three products of a
layer run on these units.
"""

import functools

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

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


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def einsum(
    subscripts: str, a: Float[Array, "..."], b: Float[Array, "..."], dtype: DTypeLike
) -> Float[Array, "..."]:
    """A `jnp.einsum` of two operands, which are cast to `dtype` first, as is the cotangent.

    Every index must stand in at least two of the three terms, so that each gradient is the einsum
    with the terms exchanged. The result is float32; products accumulate in float32.

    Example:
      >>> einsum("btd,df->btf", x, kernel, jnp.bfloat16)
    """
    return _product(subscripts, a, b, dtype)


def _product(subscripts: str, a: Array, b: Array, dtype: DTypeLike) -> Array:
    product = jnp.einsum(subscripts, a.astype(dtype), b.astype(dtype), preferred_element_type=dtype)
    return product.astype(jnp.float32)


def _einsum_forward(
    subscripts: str, a: Array, b: Array, dtype: DTypeLike
) -> tuple[Array, tuple[Array, Array]]:
    return _product(subscripts, a, b, dtype), (a.astype(dtype), b.astype(dtype))


def _einsum_backward(
    subscripts: str, dtype: DTypeLike, operands: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    a, b = operands
    terms, out = subscripts.split("->")
    a_term, b_term = terms.split(",")
    grad_a = _product(f"{out},{b_term}->{a_term}", cotangent, b, dtype)
    grad_b = _product(f"{a_term},{out}->{b_term}", a, cotangent, dtype)
    return grad_a, grad_b


einsum.defvjp(_einsum_forward, _einsum_backward)
