"""Which products run in bfloat16 or in 8-bit whole numbers, and how.

Parameters, activations, softmax, norms, losses and the optimizer stay in float32; only matrix
products change. Where the hardware has bfloat16 units (GPU, TPU, CPUs with AMX) `einsum` rounds
both operands, and in the backward pass the cotangent, to bfloat16, so that all three products of a
layer use them.

A model that is used and no longer trained may have its weights as `Int8Matrix`.
"""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp

DTYPES = ("auto", "float32", "bfloat16")
WEIGHTS = ("float32", "int8")
TILE_ROWS = 16  # what AMX multiplies at once


def product_dtype(name: str) -> jnp.dtype:
    """The type that products run in for a config's `model.dtype`; "auto" asks the default device.

    Raises:
      ValueError: `name` is none of DTYPES.
    """
    if name not in DTYPES:
        raise ValueError(f"dtype is {name!r}, not one of {', '.join(DTYPES)}")
    if name == "auto":
        name = "bfloat16" if _has_bfloat16_units() else "float32"
    return jnp.dtype(name)


def dtype_for_rows(rows: int, dtype: jnp.dtype) -> jnp.dtype:
    """The type of stacked products in which so many rows meet each matrix: `dtype`, but on a CPU
    float32 if they are few, as a new token is that meets the keys of those behind it.

    With one row the product takes as long as reading the matrix, which XLA would first convert if
    it were bfloat16; with the four of a beam search both types take about as long.
    """
    few = rows < TILE_ROWS and jax.default_backend() == "cpu"
    return jnp.dtype(jnp.float32) if few else dtype


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def einsum(subscripts: str, a: jax.Array, b: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """A two-operand `jnp.einsum` whose operands, and cotangent, are rounded to `dtype` first.

    Every index must stand in two of the three terms at least, so that each gradient is the einsum
    with the terms exchanged. The result is float32; products accumulate in float32.

    Example:
      >>> einsum("btd,df->btf", x, kernel, jnp.bfloat16)
    """
    return _product(subscripts, a, b, dtype)


def _product(subscripts, a, b, dtype):
    product = jnp.einsum(subscripts, a.astype(dtype), b.astype(dtype), preferred_element_type=dtype)
    return product.astype(jnp.float32)


def _einsum_forward(subscripts, a, b, dtype):
    return _product(subscripts, a, b, dtype), (a.astype(dtype), b.astype(dtype))


def _einsum_backward(subscripts, dtype, operands, cotangent):
    a, b = operands
    terms, out = subscripts.split("->")
    a_term, b_term = terms.split(",")
    grad_a = _product(f"{out},{b_term}->{a_term}", cotangent, b, dtype)
    grad_b = _product(f"{a_term},{out}->{b_term}", a, cotangent, dtype)
    return grad_a, grad_b


einsum.defvjp(_einsum_forward, _einsum_backward)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Int8Matrix:
    """W^T of a linear map, in 8-bit whole numbers: O outputs of I inputs.

    Each output has a scale of its own, and so has each row that meets the matrix, as it comes: the
    largest element becomes 127 (Dettmers et al. 2022, section 2). Products of whole numbers are
    exact; what is lost is lost in rounding.

    Attributes:
      values: int8 [O, I].
      scales: float32 [O]; the matrix is nearly `values * scales[:, None]`.
    """

    values: jax.Array
    scales: jax.Array

    @classmethod
    def of(cls, matrix: jax.Array) -> "Int8Matrix":
        """The nearest one to float32 [O, I]."""
        return cls(*_to_int8(matrix))

    def rows(self, index: jax.Array) -> jax.Array:
        """Rows of the matrix: int32 [...] -> float32 [..., I]."""
        scales = jnp.take(self.scales, index)[..., None]
        return jnp.take(self.values, index, axis=0) * scales

    def product(self, x: jax.Array) -> jax.Array:
        """x W: float32 [N, I] -> float32 [N, O]."""
        x, scales = _to_int8(x)
        contracted = (((1,), (1,)), ((), ()))
        sums = jax.lax.dot_general(x, self.values, contracted, preferred_element_type=jnp.int32)
        return sums * (scales[:, None] * self.scales)


def _to_int8(x):
    """Rows [N, I] as int8, and the scale of each."""
    scales = jnp.maximum(jnp.abs(x).max(axis=1) / 127, jnp.finfo(x.dtype).tiny)
    return jnp.round(x / scales[:, None]).astype(jnp.int8), scales


def compiler_options() -> dict[str, bool]:
    """XLA options for `jax.jit(..., compiler_options=)` on the default device.

    On a CPU with AMX, oneDNN's kernels serve the transposed bfloat16 products of the backward pass
    4x faster than XLA's own. On a CPU without AMX they would fall to a reference loop, a thousand
    times slower, so the option stays off there. Searches do without: their products are small, for
    which oneDNN's take longer, and it norms in its own way, several times slower.
    """
    option = {"xla_cpu_experimental_onednn_custom_call": True}
    return option if _is_cpu_with_amx() and _compiler_knows(tuple(option.items())) else {}


def _has_bfloat16_units() -> bool:
    return jax.default_backend() != "cpu" or _is_cpu_with_amx()


@functools.cache
def _is_cpu_with_amx() -> bool:
    if jax.default_backend() != "cpu":
        return False
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "amx_bf16" in cpuinfo.read_text()


@functools.cache
def _compiler_knows(options: tuple) -> bool:
    """Option names differ between releases of jaxlib, and an unknown one fails the compilation."""
    try:
        jax.jit(lambda x: x + 1, compiler_options=dict(options)).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
