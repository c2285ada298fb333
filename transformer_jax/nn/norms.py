# SPDX-License-Identifier: Apache-2.0
"""LayerNorm (section 3.1) and RMSNorm, over the last axis; BatchNorm, over tokens. In float32."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.nn import per_device
from transformer_jax.nn.auxiliary import is_collected
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.ops import with_gradient
from transformer_jax.nn.parameters import SIDE_GRADIENT
from transformer_jax.registry import Registry


class LayerNorm(nn.Module):
    """(x - mean(x)) / std(x), times a learned scale, plus a learned bias (Ba et al. 2016), unless
    `use_bias` is False.

    The variance is computed from x - mean(x); mean(x^2) - mean(x)^2 loses digits if the mean is
    large.
    """

    epsilon: float = 1e-6
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """The result is float32, whatever x is."""
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        y = standardize(x.astype(jnp.float32), True, self.epsilon) * scale
        return y + self.param("bias", nn.initializers.zeros, x.shape[-1:]) if self.use_bias else y


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2)), times a learned scale (Zhang and Sennrich 2019).

    With `plus_one` the factor is 1 + a learned scale that starts at 0 (Gemma, 2024).
    """

    epsilon: float = 1e-6
    plus_one: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """The result is float32, whatever x is."""
        init = nn.initializers.zeros if self.plus_one else nn.initializers.ones
        scale = self.param("scale", init, x.shape[-1:])
        y = standardize(x.astype(jnp.float32), False, self.epsilon)
        return y * (1 + scale if self.plus_one else scale)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def standardize(
    x: Float[Array, "*B D"], centered: bool, epsilon: float = 1e-6
) -> Float[Array, "*B D"]:
    """Divides x, or x - mean(x) if `centered`, by sqrt(mean square + epsilon) on the last axis."""
    mean, factor = _statistics(x, centered, epsilon)
    return (x - mean) * factor


@standardize.defjvp
def _standardized_tangent(
    centered: bool, epsilon: float, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    """Tangent of y: dx times the factor, minus its component along y and, if centered, its mean."""
    (x,) = primals
    (dx,) = tangents
    # The barrier keeps these two numbers of each vector. Otherwise each sum of the backward pass
    # would compute them again, in a kernel that writes a whole array before it is added up.
    mean, factor = jax.lax.optimization_barrier(_statistics(x, centered, epsilon))
    y = (x - mean) * factor
    dy = dx * factor
    tangent = dy - y * (y * dy).mean(-1, keepdims=True)
    return y, tangent - dy.mean(-1, keepdims=True) if centered else tangent


def _statistics(x: Float[Array, "*B D"], centered: bool, epsilon: float) -> tuple[Array, Array]:
    """Mean of each vector (0 if not centered), and 1 / sqrt(mean square of the rest + epsilon)."""
    mean = x.mean(-1, keepdims=True) if centered else jnp.zeros_like(x[..., :1])
    return mean, jax.lax.rsqrt(jnp.square(x - mean).mean(-1, keepdims=True) + epsilon)


class BatchNorm(nn.Module):
    """(x - mean) / std of each feature over tokens, times a learned scale, plus a learned bias
    (Ioffe and Szegedy 2015).

    A training step takes mean and variance of the real tokens of its micro-batch, on all devices
    together, so that results depend on `train.accumulation_steps`. Everywhere else they are
    averages over the last updates: of sums of the tokens, of their squared differences from the
    mean, and of their number. Norms outside the stacks, as of embeddings, count padding, too.
    """

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """The result is float32, whatever x is."""
        size = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (size,))
        bias = self.param("bias", nn.initializers.zeros, (size,))
        averages = self.param("averages", nn.initializers.zeros, (3, size))
        x = x.astype(jnp.float32)
        if not is_collected(self):
            total, squares, count = averages
            mean = total / jnp.maximum(count, _TINY)
            variance = squares / jnp.maximum(count, _TINY)
            variance = jnp.where(count == 0, 1.0, variance)  # before the first update
            return (x - mean) * jax.lax.rsqrt(variance + self.epsilon) * scale + bias
        sums = _token_sums(x)
        total, squares, count = _sum_over_devices(sums)
        mean = total / jnp.maximum(count, 1)
        variance = squares / jnp.maximum(count, 1)
        y = (x - mean) * jax.lax.rsqrt(variance + self.epsilon) * scale + bias
        return with_gradient(y, averages, -SIDE_GRADIENT * sums)  # kind "average" of parameters


_TINY = float(jnp.finfo(jnp.float32).tiny)
_real_tokens: ContextVar[Array | None] = ContextVar("real_tokens", default=None)


@contextlib.contextmanager
def real_tokens(real: Bool[Array, "N T"] | None) -> Iterator[None]:
    """Context: inside, statistics over tokens [N, T] leave out those that are not real."""
    token = _real_tokens.set(real)
    try:
        yield
    finally:
        _real_tokens.reset(token)


def _token_sums(x: Float[Array, "*B D"]) -> Float[Array, "3 D"]:
    """Sums over this device's real tokens of x, (x - mean over all devices)^2 and 1."""
    real = _real_tokens.get()
    weights = jnp.ones_like(x) if real is None else jnp.broadcast_to(real[..., None], x.shape)
    weights = weights.astype(x.dtype)
    axes = tuple(range(x.ndim - 1))
    local = jnp.stack([(weights * x).sum(axes), weights.sum(axes)])
    total, count = _sum_over_devices(local)
    squares = weights * jnp.square(x - total / jnp.maximum(count, 1))
    return jnp.stack([local[0], squares.sum(axes), local[1]])


def _sum_over_devices(sums: Array) -> Array:
    """Adds up sums of devices that each run the program on their own rows."""
    devices = per_device.axis("device_rows")
    return sums if devices is None else jax.lax.psum(sums, devices.name)


NORMS: Registry[Callable[[float], nn.Module]] = Registry(
    "model.norm",
    {
        "layer": LayerNorm,
        "layer_unbiased": functools.partial(LayerNorm, use_bias=False),
        "batch": BatchNorm,
        "rms": RMSNorm,
        "rms_plus_one": functools.partial(RMSNorm, plus_one=True),
    },
)
"""Functions from `norm_epsilon` to a module, by the name in `model.norm`."""


def make_norm(config: TransformerConfig) -> nn.Module:
    """Norm that `config.norm` names."""
    return NORMS.configured(config.norm, config)(config.norm_epsilon)
