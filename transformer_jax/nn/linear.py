# SPDX-License-Identifier: Apache-2.0
"""Linear maps, with the dtypes of the config."""

import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from transformer_jax.nn.config import TransformerConfig, activation_dtype
from transformer_jax.nn.dropout import drop_elements, threefry_bits
from transformer_jax.nn.int8 import Int8Matrix
from transformer_jax.nn.lora import AdaptedMatrix
from transformer_jax.nn.ops import einsum, product_dtype
from transformer_jax.nn.traced_numbers import dropout_rate, traced_number


class Linear(nn.Module):
    """y = x W + b, from the last axes of x to new ones. The initial b is zero.

    Attributes:
      inputs: sizes of the last axes of x, such as (d_model,) or (num_heads, d_v).
      outputs: sizes of the axes that replace them; W has shape (*inputs, *outputs), b `outputs`.
      std: standard deviation of the normal distribution of the initial W; None: Xavier-uniform.
      exact: y is float32 and not rounded, as logits are; otherwise it has the dtype of activations.
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
            self.param("bias", nn.initializers.zeros, self.outputs)
        return self.add_bias(y)

    def matrix(self) -> Float[Array, "..."]:
        """W as an array, for products in another order."""
        kernel: Any = self.get_variable("params", "kernel")
        if isinstance(kernel, Int8Matrix):
            rows = kernel.rows(jnp.arange(len(kernel.scales)))
            return rows.T.reshape(*self.inputs, *self.outputs)
        return kernel.merged() if isinstance(kernel, AdaptedMatrix) else kernel

    def add_bias(self, product: Float[Array, "..."]) -> Float[Array, "..."]:
        """Adds the bias to x W, if there is one, and casts the result."""
        if self.use_bias:
            product += self.get_variable("params", "bias")
        return product if self.exact else product.astype(activation_dtype(self.config))

    def _product(self, x: Float[Array, "N I"]) -> Float[Array, "N O"]:
        """Computes x W of two matrices. With more axes XLA would transpose a copy of x for the
        gradient of the kernel."""
        kernel: Any = self.get_variable("params", "kernel")
        if isinstance(kernel, Int8Matrix):
            return kernel.product(x)
        if isinstance(kernel, AdaptedMatrix):
            key = self.make_rng("dropout") if self.has_rng("dropout") else None
            return adapted_product(x, kernel, product_dtype(self.config.dtype), key, self.exact)
        shape = (*self.inputs, *self.outputs)
        axes = tuple(range(len(shape)))
        num_inputs = len(self.inputs)
        init = kernel_initializer(self.std, axes[:num_inputs], axes[num_inputs:])
        kernel = self.param("kernel", init, shape)
        kernel = kernel.reshape(x.shape[1], -1)
        return einsum("nd,df->nf", x, kernel, product_dtype(self.config.dtype), self.exact)


def adapted_product(
    x: Float[Array, "N I"],
    matrix: AdaptedMatrix,
    dtype: DTypeLike,
    key: jax.Array | None,
    exact: bool = False,
) -> Float[Array, "N O"]:
    """x W + s x A B, with dropout on the adapter's x if there is a key; `exact` as of
    `ops.einsum`."""
    base = einsum("nd,df->nf", x, matrix.kernel.reshape(x.shape[1], -1), dtype, exact)
    adapter = matrix.adapter
    if key is not None and adapter.dropout_rate:
        rate = traced_number("lora.dropout_rate", dropout_rate(adapter.dropout_rate))
        x = drop_elements(x, jax.random.key_data(key), rate, threefry_bits)
    inner = einsum("nd,dr->nr", x, adapter.down, dtype)
    return base + adapter.scale * einsum("nr,rf->nf", inner, adapter.up, dtype, exact)


def fused_projection(
    maps: Sequence[Linear], x: Float[Array, "*B D"]
) -> list[Float[Array, "*B H K"]]:
    """Applies several maps to the same x as one product, which reads x once.

    Kernels are joined head by head of the map with the fewest heads, so that a mesh that shards
    heads shards the joined kernel alike. Maps are applied one by one if a kernel is int8 or has an
    adapter, and if x has fewer rows than a kernel: joining would take longer than the products.
    """
    kernels: list[Any] = [linear.get_variable("params", "kernel") for linear in maps]
    rows = math.prod(x.shape[:-1])
    not_joined = (Int8Matrix, AdaptedMatrix)
    if rows < x.shape[-1] or any(isinstance(kernel, not_joined) for kernel in kernels):
        return [linear(x) for linear in maps]
    heads = min(kernel.shape[1] for kernel in kernels)
    by_head = [kernel.reshape(x.shape[-1], heads, -1) for kernel in kernels]
    joined = jnp.concatenate(by_head, axis=2).reshape(x.shape[-1], -1)
    dtype = product_dtype(maps[0].config.dtype)
    y = einsum("nd,df->nf", x.reshape(rows, -1), joined, dtype).reshape(*x.shape[:-1], heads, -1)
    sizes = [kernel.shape[2] for kernel in by_head]
    parts = jnp.split(y, [sum(sizes[:i]) for i in range(1, len(sizes))], axis=-1)
    return [
        linear.add_bias(part.reshape(*x.shape[:-1], *linear.outputs))
        for linear, part in zip(maps, parts, strict=True)
    ]


def kernel_initializer(
    std: float | None, in_axis: Any, out_axis: Any, batch_axis: Any = ()
) -> nn.initializers.Initializer:
    """Normal with this standard deviation; None: Xavier-uniform over these axes of the kernel."""
    if std is not None:
        return nn.initializers.normal(std)
    return nn.initializers.xavier_uniform(in_axis, out_axis, batch_axis)
