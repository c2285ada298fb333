"""How order enters the model (section 3.5): one class each, chosen by name in `POSITIONS`.

Attention and embeddings call three hooks, each a no-op unless an encoding overrides it. B batch,
T queries, S keys, H heads, D model, K head size; positions are int32 and restart in each packed
sentence.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.nn.config import TransformerConfig


class Positions(nn.Module):
    """No positions: the hooks, and the base of every encoding."""

    config: TransformerConfig

    @classmethod
    def reach(cls, config: TransformerConfig) -> float:
        """How many positions the encoding has: without end unless it overrides this."""
        return math.inf

    def embed(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        """Adds to the embeddings: x [B, T, D], positions [B, T] -> [B, T, D]."""
        return x

    def rotate(
        self, query: jax.Array, key: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Turns the queries and keys of self-attention: [B, T, H, K] each, positions [B, T]."""
        return query, key

    def bias(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array | None:
        """Adds to the logits of self-attention: [B, T], [B, S] -> [B, H, T, S]; None: nothing."""
        return None


class SinusoidalPositions(Positions):
    """Sines and cosines of geometrically growing wavelengths, interleaved (section 3.5)."""

    def embed(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        return x + sinusoids(positions, self.config.d_model)


class LearnedPositions(Positions):
    """A trained vector for each position up to `max_length` (section 3.5, table 3 row E).

    Positions beyond, as padding may have, take the last vector: see `check_reach`.
    """

    @classmethod
    def reach(cls, config: TransformerConfig) -> float:
        """The rows of the table."""
        return config.max_length

    def setup(self):
        shape = (self.config.max_length, self.config.d_model)
        self.table = self.param("table", nn.initializers.normal(self.config.embedding_std), shape)

    def embed(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        return x + jnp.take(self.table, positions, axis=0, mode="clip")


def sinusoids(positions: jax.Array, d_model: int) -> jax.Array:
    """PE(p, 2i) = sin(p / 10000^(2i / D)), PE(p, 2i + 1) = cos(the same): [...] -> [..., D]."""
    pair = jnp.arange(0, d_model, 2)
    angles = positions[..., None] * 10_000.0 ** (-pair / d_model)
    waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)  # [..., D / 2, 2]
    return waves.reshape(*positions.shape, -1)[..., :d_model]


POSITIONS: dict[str, type[Positions]] = {
    "none": Positions,
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
}


def encoding_class(config: TransformerConfig) -> type[Positions]:
    """The class that `config.positions` names; ValueError if there is none."""
    if config.positions not in POSITIONS:
        known = ", ".join(POSITIONS)
        raise ValueError(f"positions is {config.positions!r}, not one of {known}")
    return POSITIONS[config.positions]


def check_reach(config: TransformerConfig, length: int) -> None:
    """Raises ValueError where sequences of `length` tokens go beyond the config's positions."""
    if length > encoding_class(config).reach(config):
        raise ValueError(
            f"positions {config.positions!r} reach to max_length {config.max_length}, "
            f"sequences to {length}"
        )
