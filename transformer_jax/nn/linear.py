"""A linear map whose product and result have the configured dtypes."""

import math
from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float

from transformer_jax.nn.config import TransformerConfig, activation_dtype
from transformer_jax.nn.int8 import Int8Matrix
from transformer_jax.nn.products import einsum, product_dtype


class Linear(nn.Module):
    """y = x W + b, from the last axes of x to new ones. A fresh b is zero.

    Attributes:
      inputs: sizes of the last axes of x, as (d_model,) or (num_heads, d_v).
      outputs: sizes of the axes in their place; W has shape (*inputs, *outputs), b has `outputs`.
      use_bias: whether there is a b.
      config: of the model, which says in which dtypes products and activations are.
      std: standard deviation of a fresh W, which is normal; None: Xavier-uniform.
      exact: y stays float32, as logits do; else it has the dtype of activations.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    use_bias: bool
    config: TransformerConfig
    std: float | None = None
    exact: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """[..., *inputs] -> [..., *outputs]."""
        y = self._product(x.reshape(-1, math.prod(self.inputs)))
        y = y.reshape(*x.shape[: x.ndim - len(self.inputs)], *self.outputs)
        if self.use_bias:
            y += self.param("bias", nn.initializers.zeros, self.outputs)
        return y if self.exact else y.astype(activation_dtype(self.config))

    def _product(self, x: Float[Array, "N I"]) -> Float[Array, "N O"]:
        """A product of matrices, not of stacks of them: otherwise XLA would transpose a copy of x
        for the kernel's gradient."""
        kernel: Any = self.get_variable("params", "kernel")
        if isinstance(kernel, Int8Matrix):
            return kernel.product(x)
        init = _initializer(self.inputs, self.outputs, self.std)
        kernel = self.param("kernel", init, (*self.inputs, *self.outputs))
        kernel = kernel.reshape(x.shape[1], -1)
        return einsum("nd,df->nf", x, kernel, product_dtype(self.config.dtype))


def _initializer(
    inputs: tuple[int, ...], outputs: tuple[int, ...], std: float | None
) -> nn.initializers.Initializer:
    if std is not None:
        return nn.initializers.normal(std)
    in_axes = tuple(range(len(inputs)))
    out_axes = tuple(range(len(inputs), len(inputs) + len(outputs)))
    return nn.initializers.xavier_uniform(in_axis=in_axes, out_axis=out_axes)
