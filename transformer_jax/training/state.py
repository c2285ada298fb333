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
      params: the model's parameters, float32: those to evaluate and to use.
      opt_state: of the optimizer.
      rng: raw key data; each step folds its number into it.
      live: the parameters that updates change, where `params` are their moving average; None where
        `params` are changed themselves.
    """

    step: jax.Array
    params: Any
    opt_state: optax.OptState
    rng: jax.Array
    live: Any = None

    @classmethod
    def create(
        cls,
        params: Any,
        optimizer: optax.GradientTransformation,
        rng: jax.Array,
        averaged: bool = False,
    ):
        """The state before the first step; `rng` is a key, `averaged` keeps `live` apart."""
        return cls(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            rng=jax.random.key_data(rng),
            live=params if averaged else None,
        )

    def started_from(self, params: Any) -> "TrainState":
        """This state with other parameters, the moving average among them."""
        live = None if self.live is None else jax.tree.map(jnp.copy, params)
        return self.replace(params=params, live=live)
