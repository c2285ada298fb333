"""Weights as 8-bit integers, for a model that is used and no longer trained."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int8

from transformer_jax.nn.parameters import parameter_at

WEIGHTS = ("float32", "int8")
"""Kinds of weights that a trained model may be used with."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Int8Matrix:
    """W^T of a linear map as 8-bit integers: O outputs of I inputs.

    Each output has a scale of its own, and each row that is multiplied gets one on the way: the
    largest element becomes 127 (Dettmers et al. 2022, section 2). Products of integers are exact;
    only rounding loses precision.

    Attributes:
      values: int8 [O, I].
      scales: float32 [O]; the matrix is nearly `values * scales[:, None]`.
    """

    values: Int8[Array, "O I"]
    scales: Float[Array, " O"]

    @classmethod
    def of(cls, matrix: Float[Array, "O I"]) -> "Int8Matrix":
        """The nearest one."""
        return cls(*_to_int8(matrix))

    def rows(self, index: Int[Array, "*B"]) -> Float[Array, "*B I"]:
        """Rows of the matrix."""
        scales = jnp.take(self.scales, index)[..., None]
        return jnp.take(self.values, index, axis=0) * scales

    def product(self, x: Float[Array, "N I"]) -> Float[Array, "N O"]:
        """x W."""
        x, scales = _to_int8(x)
        contracted = (((1,), (1,)), ((), ()))
        sums = jax.lax.dot_general(x, self.values, contracted, preferred_element_type=jnp.int32)
        return sums * (scales[:, None] * self.scales)


def _to_int8(x: Float[Array, "N I"]) -> tuple[Int8[Array, "N I"], Float[Array, " N"]]:
    """Rows as int8, and the scale of each."""
    scales = jnp.maximum(jnp.abs(x).max(axis=1) / 127, jnp.finfo(x.dtype).tiny)
    return jnp.round(x / scales[:, None]).astype(jnp.int8), scales


def weights_as(kind: str, params: Any) -> Any:
    """The parameters with the matrices of linear maps and of token embeddings in the given kind.

    Biases, norms and vectors of positions stay in float32, and so do softmax and attention.

    Args:
      kind: one of WEIGHTS; "float32" changes nothing.
      params: of a model; its modules accept the result in their place.
    """
    return params if kind == "float32" else _quantized(params)


@jax.jit
def _quantized(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(_quantize, params)


def _quantize(path: Any, leaf: jax.Array) -> jax.Array | Int8Matrix:
    parameter = parameter_at(jax.tree_util.keystr(path, simple=True, separator="/"))
    if parameter is None or not (parameter.is_linear or parameter.kind == "embedding"):
        return leaf
    if parameter.kind == "embedding":
        return Int8Matrix.of(leaf)
    inputs = math.prod(leaf.shape[: parameter.input_axes])
    return Int8Matrix.of(leaf.reshape(inputs, -1).T)
