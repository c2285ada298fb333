"""Weights as 8-bit integers, for a model that is used and no longer trained."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.nn.parameters import parameter_at

WEIGHTS = ("float32", "int8")
"""Kinds of weights that a trained model may be used with."""


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
