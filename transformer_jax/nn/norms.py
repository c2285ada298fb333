"""Norms of each vector (section 3.1), over the last axis, in float32."""

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

    The variance is that of x - mean(x); as mean(x^2) - mean(x)^2 it loses digits where the mean is
    large.
    """

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """The result is float32, whatever x is."""
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        return standardized(x.astype(jnp.float32), True, self.epsilon) * scale + bias


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2)), times a learned scale: neither centered nor shifted (Zhang and Sennrich
    2019).

    Gemma's (2024) is `plus_one`: times 1 + a learned scale that begins at 0.
    """

    epsilon: float = 1e-6
    plus_one: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """The result is float32, whatever x is."""
        fresh = nn.initializers.zeros if self.plus_one else nn.initializers.ones
        scale = self.param("scale", fresh, x.shape[-1:])
        y = standardized(x.astype(jnp.float32), False, self.epsilon)
        return y * (1 + scale if self.plus_one else scale)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def standardized(
    x: Float[Array, "*B D"], centered: bool, epsilon: float = 1e-6
) -> Float[Array, "*B D"]:
    """x over the root of its mean square plus epsilon, along the last axis; of x - mean(x) if
    `centered`."""
    mean, factor = _statistics(x, centered, epsilon)
    return (x - mean) * factor


@standardized.defjvp
def _standardized_tangent(
    centered: bool, epsilon: float, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    """The tangent of x times the factor, less its component along y and, if centered, its mean."""
    (x,), (of_x,) = primals, tangents
    # The barrier keeps these two numbers of each vector. Otherwise each sum of the backward pass
    # would compute them again, in a kernel that writes a whole array before it is added up.
    mean, factor = jax.lax.optimization_barrier(_statistics(x, centered, epsilon))
    y, of_y = (x - mean) * factor, of_x * factor
    rest = of_y - y * (y * of_y).mean(-1, keepdims=True)
    return y, rest - of_y.mean(-1, keepdims=True) if centered else rest


def _statistics(x: Float[Array, "*B D"], centered: bool, epsilon: float) -> tuple[Array, Array]:
    """The mean of each vector, 0 if not centered, and 1 over the root mean square of the rest."""
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
"""What `model.norm` may name: a function of the epsilon."""


def make_norm(config: TransformerConfig) -> nn.Module:
    """The norm that the config names."""
    return NORMS.find(config.norm)(config.norm_epsilon)


def final_norm(config: TransformerConfig) -> nn.Module | None:
    """The norm after a stack whose layers leave the stream unnormalized; None for post-norm."""
    return None if config.norm_placement == "post" else make_norm(config)
