"""Positions that rotate queries and keys. B batch, T tokens, H heads, K key size of a head.

R = `rope_fraction` K elements of a head are rotated, in R / 2 pairs.
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
    """Rotary position embedding (Su et al. 2021): the product of a query and a key depends on the
    distance between them, not on where they stand."""

    reads = ("model.rope_theta", "model.rope_fraction", "model.rope_layout", "model.rope_scaling")

    def rotate(
        self,
        query: Float[Array, "B T H K"],
        key: Float[Array, "B T G K"],
        positions: Int[Array, "B T"],
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B T G K"]]:
        how = frequencies(self.config, query.shape[-1]), self.config.rope_layout == "halves"
        return rotated(query, positions, *how), rotated(key, positions, *how)


def rotated(
    x: Float[Array, "B T H K"],
    positions: Int[Array, "B T"],
    frequencies: Frequencies,
    halves: bool = False,
) -> Float[Array, "B T H K"]:
    """Rotates pair i at position p by the angle p frequencies[i], in radians; elements beyond the
    pairs stay as they are.

    A pair is (x_2i, x_2i+1), or (x_i, x_i+R/2) if `halves`.
    """
    turning, rest = jnp.split(x, [2 * len(frequencies)], axis=-1)
    angles = positions[:, :, None, None] * frequencies  # [B, T, 1, R / 2]
    # Without the barrier XLA computes both again for every head.
    cos, sin = jax.lax.optimization_barrier((jnp.cos(angles), jnp.sin(angles)))
    a, b = jnp.split(turning, 2, axis=-1) if halves else (turning[..., ::2], turning[..., 1::2])
    turned = a * cos - b * sin, a * sin + b * cos
    if halves:
        return jnp.concatenate([*turned, rest], axis=-1)
    pairs = jnp.stack(turned, axis=-1).reshape(*x.shape[:-1], -1)  # of [B, T, H, R / 2, 2]
    return jnp.concatenate([pairs, rest], axis=-1)


def frequencies(config: TransformerConfig, key_size: int) -> Frequencies:
    """theta^(-2i / R) of each pair i, then scaled, in float32 as published models have them."""
    size = int(key_size * config.rope_fraction)
    exponents = np.arange(0, size - 1, 2, dtype=np.float32) / np.float32(size)
    scale = SCALINGS.find(config.rope_scaling).scale
    powers = config.rope_theta ** exponents.astype(np.float64)
    fresh = 1 / powers.astype(np.float32)
    return np.array([scale(each, config) for each in fresh], np.float32)


@dataclasses.dataclass(frozen=True)
class RotaryScaling:
    """Slower rotations, for texts longer than those that a model was trained on.

    Attributes:
      scale: from a frequency and the config to the new frequency.
      reads: the fields of the config that it reads, "section.field".
    """

    scale: Callable[[np.float32, TransformerConfig], np.float32]
    reads: Collection[str] = ()


def _divided(frequency: np.float32, config: TransformerConfig) -> np.float32:
    """As if positions were divided by the factor (Chen et al. 2023)."""
    return frequency / np.float32(config.rope_factor)


def _divided_by_wavelength(frequency: np.float32, config: TransformerConfig) -> np.float32:
    """Short wavelengths stay, long ones are multiplied by the factor, and in between the frequency
    is interpolated (Llama 3, 2024, section 3.2)."""
    low, high = config.rope_low_factor, config.rope_high_factor
    if low >= high:
        raise ValueError(f"rope_low_factor {low:g} is not below rope_high_factor {high:g}")
    wavelength = 1 / frequency * (2 * math.pi)  # rounded as in the published program
    periods = 1 / wavelength * config.rope_original_length
    kept = np.clip((periods - low) / (high - low), 0, 1)
    return (1 - kept) * frequency / np.float32(config.rope_factor) + kept * frequency


_FACTOR = "model.rope_factor"
_WAVELENGTHS = ("model.rope_low_factor", "model.rope_high_factor", "model.rope_original_length")

SCALINGS: Registry[RotaryScaling] = Registry(
    "model.rope_scaling",
    {
        "none": RotaryScaling(lambda frequency, config: frequency),
        "linear": RotaryScaling(_divided, (_FACTOR,)),
        "llama3": RotaryScaling(_divided_by_wavelength, (_FACTOR, *_WAVELENGTHS)),
    },
)
"""What `model.rope_scaling` may name."""
