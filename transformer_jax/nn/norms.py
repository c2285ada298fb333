# SPDX-License-Identifier: Apache-2.0
"""LayerNorm (section 3.1) and RMSNorm, over the last axis, in float32."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.registry import Registry


class LayerNorm(nn.Module):
    """(x - mean(x)) / std(x), times a learned scale, plus a learned bias (Ba et al. 2016).

    The variance is computed from x - mean(x); mean(x^2) - mean(x)^2 loses digits if the mean is
    large.
    """

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """The result is float32, whatever x is."""
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        return standardize(x.astype(jnp.float32), True, self.epsilon) * scale + bias


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
    (x,), (dx,) = primals, tangents
    # The barrier keeps these two numbers of each vector. Otherwise each sum of the backward pass
    # would compute them again, in a kernel that writes a whole array before it is added up.
    mean, factor = jax.lax.optimization_barrier(_statistics(x, centered, epsilon))
    y, dy = (x - mean) * factor, dx * factor
    rest = dy - y * (y * dy).mean(-1, keepdims=True)
    return y, rest - dy.mean(-1, keepdims=True) if centered else rest


def _statistics(x: Float[Array, "*B D"], centered: bool, epsilon: float) -> tuple[Array, Array]:
    """Mean of each vector (0 if not centered), and 1 / sqrt(mean square of the rest + epsilon)."""
    mean = x.mean(-1, keepdims=True) if centered else jnp.zeros_like(x[..., :1])
    return mean, jax.lax.rsqrt(jnp.square(x - mean).mean(-1, keepdims=True) + epsilon)


NORMS: Registry[Callable[[float], nn.Module]] = Registry(
    "model.norm",
    {
        "layer": LayerNorm,
        "rms": RMSNorm,
        "rms_plus_one": functools.partial(RMSNorm, plus_one=True),
    },
)
"""Functions from `norm_epsilon` to a module, by the name in `model.norm`."""


def make_norm(config: TransformerConfig) -> nn.Module:
    """Norm that `config.norm` names."""
    return NORMS.configured(config.norm, config)(config.norm_epsilon)


def final_norm(config: TransformerConfig) -> nn.Module | None:
    """Norm after the last layer of a stack; None for post-norm, whose layers end with one."""
    return None if config.norm_placement == "post" else make_norm(config)
