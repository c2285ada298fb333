"""Weights in 8-bit whole numbers, for a model that is used and no longer trained."""

import math
from typing import Any

import jax

from transformer_jax.nn.linear import num_input_axes
from transformer_jax.precision import Int8Matrix

_TABLES = ("embedding/table", "projection/table")  # not those of positions


def weights_as(kind: str, params: Any) -> Any:
    """The parameters with the matrices of linear maps and of embeddings in the given kind.

    Biases, norms and vectors of positions stay in float32, and so do softmax and attention.

    Args:
      kind: one of `precision.WEIGHTS`; "float32" leaves all as it is.
      params: of a model; modules take the result in their place.
    """
    return params if kind == "float32" else _quantized(params)


@jax.jit
def _quantized(params):
    return jax.tree_util.tree_map_with_path(_quantize, params)


def _quantize(path, leaf):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if name.endswith(_TABLES):
        return Int8Matrix.of(leaf)
    if (axes := num_input_axes(name, leaf.ndim)) is None:
        return leaf
    return Int8Matrix.of(leaf.reshape(math.prod(leaf.shape[:axes]), -1).T)
