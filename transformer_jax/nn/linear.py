"""A linear map whose product runs in the configured dtype."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.nn.int8 import Int8Matrix
from transformer_jax.nn.products import einsum


class Linear(nn.Module):
    """y = x W + b from the last axes of x to new ones; fresh, b is zero.

    Attributes:
      inputs: sizes of the last axes of x, as (d_model,) or (num_heads, d_v).
      outputs: sizes of the axes in their place; W has shape (*inputs, *outputs), b has `outputs`.
      use_bias: whether b is there.
      dtype: of the product (`einsum`).
      std: standard deviation of a fresh W, which is normal; None: Xavier-uniform.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    use_bias: bool
    dtype: jnp.dtype
    std: float | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., *inputs] -> [..., *outputs]."""
        y = self._product(x.reshape(-1, math.prod(self.inputs)))
        y = y.reshape(*x.shape[: x.ndim - len(self.inputs)], *self.outputs)
        if self.use_bias:
            y += self.param("bias", nn.initializers.zeros, self.outputs)
        return y

    def _product(self, x: jax.Array) -> jax.Array:
        """[N, all inputs] -> [N, all outputs]. Matrices, not stacks of them: the gradient of a
        kernel then needs no transposed copy of x."""
        kernel = self.get_variable("params", "kernel")
        if isinstance(kernel, Int8Matrix):
            return kernel.product(x)
        init = _initializer(self.inputs, self.outputs, self.std)
        kernel = self.param("kernel", init, (*self.inputs, *self.outputs))
        return einsum("nd,df->nf", x, kernel.reshape(x.shape[1], -1), self.dtype)


def _initializer(inputs, outputs, std):
    if std is not None:
        return nn.initializers.normal(std)
    in_axes = tuple(range(len(inputs)))
    out_axes = tuple(range(len(inputs), len(inputs) + len(outputs)))
    return nn.initializers.xavier_uniform(in_axis=in_axes, out_axis=out_axes)
