# SPDX-License-Identifier: Apache-2.0
"""8-bit integer weights for inference."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int8

from transformer_jax.nn.parameters import map_named, parameter_at

WEIGHTS = ("float32", "int8")
"""Values of `decode.weights`."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Int8Matrix:
    """W^T of a linear map as 8-bit integers, for I inputs and O outputs.

    The matrix is about `values * scales[:, None]`. Each output has its own scale, and so has each
    row that is multiplied: its largest element becomes 127 (Dettmers et al. 2022, section 2).
    Products of integers are exact; only rounding loses precision.
    """

    values: Int8[Array, "O I"]
    scales: Float[Array, " O"]

    @classmethod
    def of(cls, matrix: Float[Array, "O I"]) -> "Int8Matrix":
        return cls(*_to_int8(matrix))

    def rows(self, index: Int[Array, "*B"]) -> Float[Array, "*B I"]:
        """Dequantizes the rows at `index`."""
        scales = jnp.take(self.scales, index)[..., None]
        return jnp.take(self.values, index, axis=0) * scales

    def product(self, x: Float[Array, "N I"]) -> Float[Array, "N O"]:
        rows = len(x)
        if rows == 1:  # on CPUs XLA multiplies one row in a scalar loop, two in vectors
            x = jnp.pad(x, ((0, 1), (0, 0)))
        x, scales = _to_int8(x)
        contracted = (((1,), (1,)), ((), ()))
        sums = jax.lax.dot_general(x, self.values, contracted, preferred_element_type=jnp.int32)
        return (sums * (scales[:, None] * self.scales))[:rows]


def _to_int8(x: Float[Array, "N I"]) -> tuple[Int8[Array, "N I"], Float[Array, " N"]]:
    """Quantizes each row; returns the values and the scales."""
    scales = jnp.maximum(jnp.abs(x).max(axis=1) / 127, jnp.finfo(x.dtype).tiny)  # zeros: not 0 / 0
    return jnp.round(x / scales[:, None]).astype(jnp.int8), scales


def convert_weights(kind: str, params: Any) -> Any:
    """Quantizes the matrices of linear maps and the token embeddings if `kind`, one of WEIGHTS, is
    "int8". All else stays in float32."""
    return params if kind == "float32" else _quantized(params)


def _quantize(path: str, leaf: jax.Array) -> jax.Array | Int8Matrix:
    parameter = parameter_at(path)
    if parameter is None or not (parameter.is_linear or parameter.kind == "embedding"):
        return leaf
    if parameter.kind == "embedding":
        return Int8Matrix.of(leaf)
    inputs = math.prod(leaf.shape[: parameter.input_axes])
    return Int8Matrix.of(leaf.reshape(inputs, -1).T)


_quantized = jax.jit(functools.partial(map_named, _quantize))
