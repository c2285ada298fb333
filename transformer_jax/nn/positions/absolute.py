# SPDX-License-Identifier: Apache-2.0
"""Positions that are added to the embeddings (section 3.5). B batch, T tokens, D model."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions.base import Embedded, PositionEncoding, Positions


class SinusoidalPositions(PositionEncoding):
    """Sines and cosines of geometrically growing wavelengths, interleaved (section 3.5)."""

    def embed(self, x: Embedded, positions: Positions) -> Embedded:
        return x + sinusoids(positions, self.config.d_model)


class SinusoidalHalves(PositionEncoding):
    """Sines and cosines of section 3.5, all sines first (Marian, Junczys-Dowmunt et al. 2018)."""

    def embed(self, x: Embedded, positions: Positions) -> Embedded:
        d_model = self.config.d_model
        angles = sinusoid_angles(positions, d_model)
        waves = jnp.sin(angles), jnp.cos(angles)[..., : d_model // 2]
        return x + jnp.concatenate(waves, axis=-1)


class LearnedPositions(PositionEncoding):
    """Learned vector for each position up to `max_length` (section 3.5, table 3 row E).

    Later positions, which only padding has (`positions.check_num_positions`), use the last vector.
    """

    reads = ("model.max_length", "model.position_offset")

    @classmethod
    def num_positions(cls, config: TransformerConfig) -> float:
        return float(config.max_length)

    def setup(self) -> None:
        c = self.config
        shape = (c.position_offset + c.max_length, c.d_model)
        self.table = self.param("table", nn.initializers.normal(c.embedding_std), shape)

    def embed(self, x: Embedded, positions: Positions) -> Embedded:
        rows = self.config.position_offset + positions
        return x + jnp.take(self.table, rows, axis=0, mode="clip")


def sinusoids(positions: Int[Array, "*B"], d_model: int) -> Float[Array, "*B D"]:
    """PE(p, 2i) = sin(p / 10000^(2i / D)), PE(p, 2i + 1) = cos(p / 10000^(2i / D))."""
    angles = sinusoid_angles(positions, d_model)
    waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)  # [..., D / 2, 2]
    return waves.reshape(*positions.shape, -1)[..., :d_model]


def sinusoid_angles(positions: Int[Array, "*B"], d_model: int) -> Float[Array, "*B P"]:
    """Angle p / 10000^(2i / D) of each pair i of a sine and a cosine."""
    pair = jnp.arange(0, d_model, 2)
    return positions[..., None] * 10_000.0 ** (-pair / d_model)
