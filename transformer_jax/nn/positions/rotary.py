# SPDX-License-Identifier: Apache-2.0
"""Rotary positions, which rotate queries and keys.

B batch, T tokens, H heads, G heads of keys, K key size of a head. R = `rope_fraction` K elements of
a head are rotated, in R / 2 pairs.
"""

import dataclasses
import math
from collections.abc import Callable, Collection
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions.base import Keys, PositionEncoding, Positions, Queries
from transformer_jax.ranges import Range, check_fields
from transformer_jax.registry import Registry

Frequencies = Float[Array | np.ndarray, " R2"]


class RotaryPositions(PositionEncoding):
    """Rotary position embedding (Su et al. 2021): products depend only on the distance."""

    reads = (
        *("model.rope_theta", "model.rope_theta_window", "model.rope_fraction"),
        *("model.rope_layout", "model.rope_scaling"),
    )

    def of_layer(self, config: TransformerConfig) -> PositionEncoding:
        if config.positions != self.config.positions:
            return super().of_layer(config)
        theta = config.rope_theta_window
        if theta is not None:
            config = dataclasses.replace(config, rope_theta=theta, rope_scaling="none")
        fields = [field.name for field in dataclasses.fields(config)]
        names = [name for name in fields if name.startswith("rope_")]
        if all(getattr(config, name) == getattr(self.config, name) for name in (*names, "options")):
            return self
        return type(self)(config, self.causal, parent=None)

    def rotate(self, query: Queries, key: Keys, positions: Positions) -> tuple[Queries, Keys]:
        c = self.config
        frequencies = rotary_frequencies(c, query.shape[-1])
        magnitude = SCALINGS.find(c.rope_scaling).magnitude(c)
        turn = (positions, frequencies, c.rope_layout == "halves", magnitude)
        return rotate_pairs(query, *turn), rotate_pairs(key, *turn)


def rotate_pairs(
    x: Queries,
    positions: Positions,
    frequencies: Frequencies,
    halves: bool = False,
    magnitude: float = 1.0,
) -> Queries:
    """Rotates pair i at position p by the angle p frequencies[i], in radians.

    A pair is (x_2i, x_2i+1), or (x_i, x_i+R/2) if `halves`. Pairs are multiplied by `magnitude`.
    Elements after the R-th are unchanged.
    """
    pairs, rest = jnp.split(x, [2 * len(frequencies)], axis=-1)
    angles = positions[:, :, None, None] * frequencies  # [B, T, 1, R / 2]
    # Without the barrier XLA computes both again for every head.
    cos, sin = jax.lax.optimization_barrier((jnp.cos(angles), jnp.sin(angles)))
    if magnitude != 1:
        cos = magnitude * cos
        sin = magnitude * sin
    a, b = jnp.split(pairs, 2, axis=-1) if halves else (pairs[..., ::2], pairs[..., 1::2])
    rotated = a * cos - b * sin, a * sin + b * cos
    if halves:
        return jnp.concatenate([*rotated, rest], axis=-1)
    pairs = jnp.stack(rotated, axis=-1).reshape(*x.shape[:-1], -1)  # from [B, T, H, R / 2, 2]
    return jnp.concatenate([pairs, rest], axis=-1)


def rotary_frequencies(config: TransformerConfig, key_size: int) -> Frequencies:
    """Frequency theta^(-2i / R) of each pair i, scaled by `rope_scaling`; rounded to float32 as in
    published models. ValueError if there is no pair."""
    size = int(key_size * config.rope_fraction)
    if size < 2:
        raise ValueError(
            f"rope_fraction {config.rope_fraction:g} of {key_size} elements of a head is no pair, "
            "so that nothing would be rotated"
        )
    exponents = np.arange(0, size - 1, 2, dtype=np.float32) / np.float32(size)
    scale = SCALINGS.find(config.rope_scaling).scale
    powers = config.rope_theta ** exponents.astype(np.float64)
    unscaled = 1 / powers.astype(np.float32)
    return np.asarray(scale(unscaled, config), np.float32)


@dataclasses.dataclass(frozen=True)
class RotaryScaling:
    """Slower rotation, for contexts longer than in training.

    Attributes:
      scale: (frequencies of all pairs, config) -> scaled frequencies.
      magnitude: config -> factor of rotated queries and keys.
    """

    scale: Callable[[Frequencies, TransformerConfig], Frequencies]
    reads: Collection[str] = ()
    magnitude: Callable[[TransformerConfig], float] = lambda config: 1.0
    options: type[Any] | None = None


def _scale_linearly(frequency: Frequencies, config: TransformerConfig) -> Frequencies:
    """Divides every frequency by the factor (Chen et al. 2023)."""
    return frequency / np.float32(config.rope_factor)


def _scale_by_wavelength(frequency: Frequencies, config: TransformerConfig) -> Frequencies:
    """Divides the frequencies of long wavelengths by the factor, keeps those of short ones, and
    interpolates between (Llama 3, 2024, section 3.2)."""
    low = config.rope_low_factor
    high = config.rope_high_factor
    if low >= high:
        raise ValueError(f"rope_low_factor {low:g} is not below rope_high_factor {high:g}")
    wavelength = 1 / frequency * (2 * math.pi)  # rounded as in the published code
    periods = 1 / wavelength * config.rope_original_length
    unscaled = np.clip((periods - low) / (high - low), 0, 1)
    return (1 - unscaled) * frequency / np.float32(config.rope_factor) + unscaled * frequency


@dataclasses.dataclass(frozen=True)
class YarnOptions:
    """Options of the scaling "yarn"; the defaults are the paper's for LLaMA.

    Attributes:
      beta_fast: pairs that turn more often within `rope_original_length` tokens are not scaled.
      beta_slow: pairs that turn less often are divided by `rope_factor`.
      truncate: round the first and last pair between these two limits outwards.
      attention_factor: factor of rotated queries and keys, the root of 1 / t for a temperature t;
        None: 0.1 ln(rope_factor) + 1.
    """

    beta_fast: Annotated[float, Range(0, 1e6, "(]")] = 32.0
    beta_slow: Annotated[float, Range(0, 1e6, "(]")] = 1.0
    truncate: bool = True
    attention_factor: Annotated[float, Range(0, 1e3, "(]")] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.beta_slow >= self.beta_fast:
            raise ValueError(
                f"beta_slow {self.beta_slow:g} is not below beta_fast {self.beta_fast:g}"
            )


def _scale_by_turns(frequency: Frequencies, config: TransformerConfig) -> Frequencies:
    """YaRN (Peng et al. 2023, section 3.2): divides the frequencies of pairs with few turns in the
    original context by the factor, keeps those with many, and interpolates between by index."""
    options = config.options_of(YarnOptions)
    size = 2 * len(frequency)

    def index_of(turns: float) -> float:
        """Index of the pair that turns this often within the original length."""
        wavelength = config.rope_original_length / turns
        return size * math.log(wavelength / (2 * math.pi)) / (2 * math.log(config.rope_theta))

    first = index_of(options.beta_fast)
    last = index_of(options.beta_slow)
    if options.truncate:
        first = math.floor(first)
        last = math.ceil(last)
    first = max(first, 0)
    last = min(last, size - 1)  # not the last pair: as in the published code
    scaled = np.clip((np.arange(len(frequency)) - first) / max(last - first, 1e-3), 0, 1)
    return (1 - scaled) * frequency + scaled * frequency / config.rope_factor


def _yarn_magnitude(config: TransformerConfig) -> float:
    """Root of 1 / t, where logits are divided by the temperature t (section 3.4)."""
    factor = config.options_of(YarnOptions).attention_factor
    return 0.1 * math.log(config.rope_factor) + 1 if factor is None else factor


_FACTOR = "model.rope_factor"
_LENGTH = "model.rope_original_length"
_WAVELENGTHS = ("model.rope_low_factor", "model.rope_high_factor", _LENGTH)

SCALINGS: Registry[RotaryScaling] = Registry(
    "model.rope_scaling",
    {
        "none": RotaryScaling(lambda frequency, config: frequency),
        "linear": RotaryScaling(_scale_linearly, (_FACTOR,)),
        "llama3": RotaryScaling(_scale_by_wavelength, (_FACTOR, *_WAVELENGTHS)),
        "yarn": RotaryScaling(_scale_by_turns, (_FACTOR, _LENGTH), _yarn_magnitude, YarnOptions),
    },
)
"""Scalings by the name in `model.rope_scaling`."""
