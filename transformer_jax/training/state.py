"""What training carries from step to step."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct


@struct.dataclass
class TrainState:
    """Everything that a checkpoint must hold for training to go on exactly, but the data's place.

    Attributes:
      step: int32 scalar, updates done.
      params: the model's parameters, float32.
      opt_state: of the optimizer.
      rng: raw key data; each step folds its number into it.
    """

    step: jax.Array
    params: Any
    opt_state: optax.OptState
    rng: jax.Array

    @classmethod
    def create(cls, params: Any, optimizer: optax.GradientTransformation, rng: jax.Array):
        """The state before the first step; `rng` is a key."""
        return cls(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            rng=jax.random.key_data(rng),
        )
