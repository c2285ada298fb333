# SPDX-License-Identifier: Apache-2.0
"""Rotary positions, which rotate queries and keys.

B batch, T tokens, H heads, G heads of keys, K key size of a head. R = `rope_fraction` K elements of
a head are rotated, in R / 2 pairs.
"""

import dataclasses
import math
from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions.base import PositionEncoding
from transformer_jax.registry import Registry

Frequencies = Float[Array | np.ndarray, " R2"]


class RotaryPositions(PositionEncoding):
    """Rotary position embedding (Su et al. 2021): the product of a query and a key depends only on
    their distance."""

    reads = (
        *("model.rope_theta", "model.rope_theta_window", "model.rope_fraction"),
        *("model.rope_layout", "model.rope_scaling"),
    )

    def of_layer(self, config: TransformerConfig) -> PositionEncoding:
        if config.rope_theta_window is None:
            return self
        theta = config.rope_theta_window
        own = dataclasses.replace(config, rope_theta=theta, rope_scaling="none")
        return RotaryPositions(own, self.causal, parent=None)

    def rotate(
        self,
        query: Float[Array, "B T H K"],
        key: Float[Array, "B T G K"],
        positions: Int[Array, "B T"],
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B T G K"]]:
        how = rotary_frequencies(self.config, query.shape[-1]), self.config.rope_layout == "halves"
        return rotate_pairs(query, positions, *how), rotate_pairs(key, positions, *how)


def rotate_pairs(
    x: Float[Array, "B T H K"],
    positions: Int[Array, "B T"],
    frequencies: Frequencies,
    halves: bool = False,
) -> Float[Array, "B T H K"]:
    """Rotates pair i at position p by the angle p frequencies[i], in radians.

    A pair is (x_2i, x_2i+1), or (x_i, x_i+R/2) if `halves`. Elements after the R-th are unchanged.
    """
    pairs, rest = jnp.split(x, [2 * len(frequencies)], axis=-1)
    angles = positions[:, :, None, None] * frequencies  # [B, T, 1, R / 2]
    # Without the barrier XLA computes both again for every head.
    cos, sin = jax.lax.optimization_barrier((jnp.cos(angles), jnp.sin(angles)))
    a, b = jnp.split(pairs, 2, axis=-1) if halves else (pairs[..., ::2], pairs[..., 1::2])
    rotated = a * cos - b * sin, a * sin + b * cos
    if halves:
        return jnp.concatenate([*rotated, rest], axis=-1)
    pairs = jnp.stack(rotated, axis=-1).reshape(*x.shape[:-1], -1)  # from [B, T, H, R / 2, 2]
    return jnp.concatenate([pairs, rest], axis=-1)


def rotary_frequencies(config: TransformerConfig, key_size: int) -> Frequencies:
    """Frequency theta^(-2i / R) of each pair i, scaled by `rope_scaling`; rounded to float32 as in
    published models."""
    size = int(key_size * config.rope_fraction)
    exponents = np.arange(0, size - 1, 2, dtype=np.float32) / np.float32(size)
    scale = SCALINGS.find(config.rope_scaling).scale
    powers = config.rope_theta ** exponents.astype(np.float64)
    unscaled = 1 / powers.astype(np.float32)
    return np.array([scale(each, config) for each in unscaled], np.float32)


@dataclasses.dataclass(frozen=True)
class RotaryScaling:
    """Slower rotation, for contexts longer than in training.

    Attributes:
      scale: (frequency, config) -> scaled frequency.
      reads: config fields that it reads, "section.field".
    """

    scale: Callable[[np.float32, TransformerConfig], np.float32]
    reads: Collection[str] = ()


def _scale_linearly(frequency: np.float32, config: TransformerConfig) -> np.float32:
    """Divides every frequency by the factor (Chen et al. 2023)."""
    return frequency / np.float32(config.rope_factor)


def _scale_by_wavelength(frequency: np.float32, config: TransformerConfig) -> np.float32:
    """Divides the frequencies of long wavelengths by the factor, keeps those of short ones, and
    interpolates between (Llama 3, 2024, section 3.2)."""
    low, high = config.rope_low_factor, config.rope_high_factor
    if low >= high:
        raise ValueError(f"rope_low_factor {low:g} is not below rope_high_factor {high:g}")
    wavelength = 1 / frequency * (2 * math.pi)  # rounded as in the published code
    periods = 1 / wavelength * config.rope_original_length
    kept = np.clip((periods - low) / (high - low), 0, 1)
    return (1 - kept) * frequency / np.float32(config.rope_factor) + kept * frequency


_FACTOR = "model.rope_factor"
_WAVELENGTHS = ("model.rope_low_factor", "model.rope_high_factor", "model.rope_original_length")

SCALINGS: Registry[RotaryScaling] = Registry(
    "model.rope_scaling",
    {
        "none": RotaryScaling(lambda frequency, config: frequency),
        "linear": RotaryScaling(_scale_linearly, (_FACTOR,)),
        "llama3": RotaryScaling(_scale_by_wavelength, (_FACTOR, *_WAVELENGTHS)),
    },
)
"""Scalings by the name in `model.rope_scaling`."""
