# SPDX-License-Identifier: Apache-2.0
"""Position encodings (section 3.5), one class for each entry of `model.positions`.

`absolute` adds to embeddings, `rotary` rotates queries and keys, `relative` depends on distances.
"""

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import absolute, relative, rotary
from transformer_jax.nn.positions.base import PositionEncoding
from transformer_jax.registry import Registry

POSITIONS: Registry[type[PositionEncoding]] = Registry(
    "model.positions",
    {
        "none": PositionEncoding,
        "sinusoidal": absolute.SinusoidalPositions,
        "sinusoidal_halves": absolute.SinusoidalHalves,
        "learned": absolute.LearnedPositions,
        "relative": relative.RelativePositions,
        "t5": relative.T5Buckets,
        "deberta": relative.DisentangledPositions,
        "deberta_hf": relative.DisentangledPositionsOfQueries,
        "rotary": rotary.RotaryPositions,
        "alibi": relative.LinearBiases,
    },
)


def encoding_class(config: TransformerConfig) -> type[PositionEncoding]:
    """Class that `config.positions` names; ValueError if there is none."""
    return POSITIONS.find(config.positions)


def check_num_positions(config: TransformerConfig, length: int) -> None:
    """Raises ValueError if sequences of `length` tokens have more positions than the config."""
    if length > encoding_class(config).num_positions(config):
        raise ValueError(
            f"positions {config.positions!r} reach to max_length {config.max_length}, "
            f"sequences to {length}"
        )
