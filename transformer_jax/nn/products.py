"""Matrix products and the dtype that they run in.

Parameters, activations, softmax, norms, losses and the optimizer stay in float32; only matrix
products change. Where the hardware multiplies bfloat16 (`platform.has_bfloat16_products`), `einsum`
rounds both operands to bfloat16, and the cotangent in the backward pass, so that all three products
of a layer run on these units. Their sums are float32, and so are their results, except on CPUs.
Products in float32 are float32 on accelerators too, whose own default is less.
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
