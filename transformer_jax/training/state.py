"""What training carries from step to step."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import optax
from flax import struct

from transformer_jax.nn.lora import with_adapters

FRESH = {"rate": 1.0, "typical_norm": 0.0}
"""What a run may begin to keep when it goes on, and its value then."""


class TrainState(struct.PyTreeNode):
    """What a checkpoint must hold, besides the place in the data, to go on exactly.

    Attributes:
      step: int32 scalar, updates done.
      params: the model's parameters, float32: those to evaluate and to use.
      opt_state: the optimizer's state.
      rng: raw key data; each step folds its number into it.
      live: the parameters that updates change, if `params` are their moving average; None if
        updates change `params` themselves.
      rate: float32 scalar, factor of the learning rate, where validation scores may lower it; else
        None.
      typical_norm: float32 scalar, mean norm of the gradients lately, 0 before the first, where a
        spike of it is looked for; else None.
      base: the parameters that do not change, where `params` are adapters beside them; None where
        `params` are all. No checkpoint holds them.
    """

    step: jax.Array
    params: Any
    opt_state: optax.OptState
    rng: jax.Array
    live: Any = None
    rate: jax.Array | None = None
    typical_norm: jax.Array | None = None
    base: Any = None

    @classmethod
    def create(
        cls,
        params: Any,
        optimizer: optax.GradientTransformation,
        rng: jax.Array,
        averaged: bool = False,
        lowered: bool = False,
        watched: bool = False,
        base: Any = None,
    ) -> Self:
        """The state before the first step.

        Args:
          params: fresh ones.
          optimizer: of optax.
          rng: a key.
          averaged: whether `params` are to become a moving average.
          lowered: whether the learning rate may be lowered.
          watched: whether spikes of the gradient are looked for.
          base: what they are beside.
        """
        return cls(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            rng=jax.random.key_data(rng),
            live=params if averaged else None,
            rate=jnp.ones((), jnp.float32) if lowered else None,
            typical_norm=jnp.zeros((), jnp.float32) if watched else None,
            base=base,
        )

    @property
    def trained(self) -> Any:
        """The parameters that updates change."""
        return self.params if self.live is None else self.live

    @property
    def model_params(self) -> Any:
        """What the model takes."""
        return self.beside_base(self.params)

    @property
    def saved(self) -> Self:
        """What a checkpoint holds."""
        return self.replace(base=None)

    def beside_base(self, params: Any) -> Any:
        """What the model takes for these, where `params` would be."""
        return params if self.base is None else with_adapters(self.base, params)

    def started_from(self, params: Any) -> Self:
        """This state with other parameters, which also start the moving average."""
        live = None if self.live is None else jax.tree.map(jnp.copy, params)
        return self.replace(params=params, live=live)
