"""A linear map whose product runs in the configured precision."""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax import precision


class Linear(nn.Module):
    """y = x W + b over the axes that `subscripts` names, W Xavier-uniform, b zero.

    Attributes:
      subscripts: of the product, as "btd,dhk->bthk": input, kernel, output.
      kernel_shape: axes of W as its term names them.
      num_inputs: how many leading axes of W are inputs (for the fans of the initializer).
      use_bias: whether b is there; it has the output axes of W.
      dtype: of the product (`precision.einsum`).
    """

    subscripts: str
    kernel_shape: Sequence[int]
    num_inputs: int
    use_bias: bool
    dtype: jnp.dtype
    kernel_init: Callable = nn.initializers.xavier_uniform

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        axes = range(len(self.kernel_shape))
        init = self.kernel_init(in_axis=axes[: self.num_inputs], out_axis=axes[self.num_inputs :])
        kernel = self.param("kernel", init, tuple(self.kernel_shape))
        y = precision.einsum(self.subscripts, x, kernel, self.dtype)
        if self.use_bias:
            y += self.param("bias", nn.initializers.zeros, kernel.shape[self.num_inputs :])
        return y
