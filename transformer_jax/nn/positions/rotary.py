"""Positions that turn queries and keys. B batch, T tokens, H heads, K key size of a head."""

import jax
import jax.numpy as jnp

from transformer_jax.nn.positions.base import Positions


class RotaryPositions(Positions):
    """Rotary position embedding (Su et al. 2021): products of a query and a key depend on how far
    apart they are, not on where."""

    def rotate(
        self, query: jax.Array, key: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return turned(query, positions), turned(key, positions)


def turned(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Turns the pair (x_2i, x_2i+1) by the angle p / 10000^(2i / K), in radians.

    Args:
      x: [B, T, H, K]; of an odd K the last element stays as it is.
      positions: p, [B, T].

    Returns:
      [B, T, H, K].
    """
    size = x.shape[-1]
    pairs = jnp.arange(0, size - 1, 2)
    angles = positions[:, :, None, None] * 10_000.0 ** (-pairs / size)  # [B, T, 1, K / 2]
    # Behind the barrier, for XLA would otherwise compute both anew for every head.
    cos, sin = jax.lax.optimization_barrier((jnp.cos(angles), jnp.sin(angles)))
    a, b = x[..., : 2 * len(pairs) : 2], x[..., 1::2]
    turns = jnp.stack([a * cos - b * sin, a * sin + b * cos], axis=-1)  # [B, T, H, K / 2, 2]
    turns = turns.reshape(*x.shape[:-1], -1)
    return jnp.concatenate([turns, x[..., 2 * len(pairs) :]], axis=-1)
