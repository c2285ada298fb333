"""How order enters the model (section 3.5): one class for each way, chosen by `model.positions`.

Attention and embeddings call the hooks of `PositionEncoding` and never ask for a name. `absolute`
has what is added to embeddings, `rotary` what rotates queries and keys, `biases` what depends on
distances alone, `relative` what depends on distances and content.
"""

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions.absolute import (
    LearnedPositions,
    SinusoidalHalves,
    SinusoidalPositions,
)
from transformer_jax.nn.positions.base import PositionEncoding
from transformer_jax.nn.positions.biases import LinearBiases, T5Buckets
from transformer_jax.nn.positions.relative import (
    DisentangledPositions,
    DisentangledPositionsOfQueries,
    RelativePositions,
)
from transformer_jax.nn.positions.rotary import RotaryPositions
from transformer_jax.registry import Registry

POSITIONS: Registry[type[PositionEncoding]] = Registry(
    "model.positions",
    {
        "none": PositionEncoding,
        "sinusoidal": SinusoidalPositions,
        "sinusoidal_halves": SinusoidalHalves,
        "learned": LearnedPositions,
        "relative": RelativePositions,
        "t5": T5Buckets,
        "deberta": DisentangledPositions,
        "deberta_hf": DisentangledPositionsOfQueries,
        "rotary": RotaryPositions,
        "alibi": LinearBiases,
    },
)


def encoding_class(config: TransformerConfig) -> type[PositionEncoding]:
    """The class that `config.positions` names; ValueError if there is none."""
    return POSITIONS.find(config.positions)


def check_reach(config: TransformerConfig, length: int) -> None:
    """Raises ValueError where sequences of `length` tokens go beyond the config's positions."""
    if length > encoding_class(config).reach(config):
        raise ValueError(
            f"positions {config.positions!r} reach to max_length {config.max_length}, "
            f"sequences to {length}"
        )
