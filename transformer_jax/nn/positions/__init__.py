"""How order enters the model (section 3.5): one class each, chosen by name in `POSITIONS`.

Attention and embeddings call the hooks of `Positions` and never ask for the name. What is added to
embeddings stands in `absolute`, what turns queries and keys in `rotary`, what depends on distances
alone in `biases`, on distances and content in `relative`.
"""

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions.absolute import LearnedPositions, SinusoidalPositions
from transformer_jax.nn.positions.base import Positions
from transformer_jax.nn.positions.biases import LinearBiases, T5Buckets
from transformer_jax.nn.positions.relative import DisentangledPositions, RelativePositions
from transformer_jax.nn.positions.rotary import RotaryPositions
from transformer_jax.registry import Registry

POSITIONS: Registry[type[Positions]] = Registry(
    "model.positions",
    {
        "none": Positions,
        "sinusoidal": SinusoidalPositions,
        "learned": LearnedPositions,
        "relative": RelativePositions,
        "t5": T5Buckets,
        "deberta": DisentangledPositions,
        "rotary": RotaryPositions,
        "alibi": LinearBiases,
    },
)


def encoding_class(config: TransformerConfig) -> type[Positions]:
    """The class that `config.positions` names; ValueError if there is none."""
    return POSITIONS.find(config.positions)


def check_reach(config: TransformerConfig, length: int) -> None:
    """Raises ValueError where sequences of `length` tokens go beyond the config's positions."""
    if length > encoding_class(config).reach(config):
        raise ValueError(
            f"positions {config.positions!r} reach to max_length {config.max_length}, "
            f"sequences to {length}"
        )
