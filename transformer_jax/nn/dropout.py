"""Dropout with cheap random bits (section 5.4)."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp


class Dropout(nn.Module):
    """Zeroes each element with probability `rate` and scales the rest so that the mean stays.

    Random bits are the costly part, so each element takes 8 of them: the rate is rounded to a
    multiple of 1/256 below 1 (0.1 becomes 26/256), and the scale is that of the rounded rate. Draws
    from the rng stream "dropout".
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        threshold = min(round(self.rate * 256), 255)
        if deterministic or threshold == 0:
            return x
        keep = random_bytes(self.make_rng("dropout"), x.shape) >= threshold
        return jnp.where(keep, x * (256 / (256 - threshold)), 0.0)


def random_bytes(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform uint8 of `shape`, four from each 32-bit word."""
    *rows, columns = shape
    words = jax.random.bits(key, (*rows, math.ceil(columns / 4)), jnp.uint32)
    return jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(*rows, -1)[..., :columns]
