"""Positions that rotate queries and keys. B batch, T tokens, H heads, K key size of a head."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.nn.positions.base import PositionEncoding


class RotaryPositions(PositionEncoding):
    """Rotary position embedding (Su et al. 2021): the product of a query and a key depends on the
    distance between them, not on where they stand."""

    def rotate(
        self,
        query: Float[Array, "B T H K"],
        key: Float[Array, "B T G K"],
        positions: Int[Array, "B T"],
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B T G K"]]:
        return rotated(query, positions), rotated(key, positions)


def rotated(x: Float[Array, "B T H K"], positions: Int[Array, "B T"]) -> Float[Array, "B T H K"]:
    """Rotates each pair (x_2i, x_2i+1) at position p by the angle p / 10000^(2i / K), in radians.
    If K is odd, the last element stays as it is."""
    size = x.shape[-1]
    pairs = jnp.arange(0, size - 1, 2)
    angles = positions[:, :, None, None] * 10_000.0 ** (-pairs / size)  # [B, T, 1, K / 2]
    # Without the barrier XLA computes both again for every head.
    cos, sin = jax.lax.optimization_barrier((jnp.cos(angles), jnp.sin(angles)))
    a, b = x[..., : 2 * len(pairs) : 2], x[..., 1::2]
    turns = jnp.stack([a * cos - b * sin, a * sin + b * cos], axis=-1)  # [B, T, H, K / 2, 2]
    turns = turns.reshape(*x.shape[:-1], -1)
    return jnp.concatenate([turns, x[..., 2 * len(pairs) :]], axis=-1)
