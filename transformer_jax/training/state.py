# SPDX-License-Identifier: Apache-2.0
"""Training state: parameters, optimizer state and random key, passed from step to step."""

from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import optax
from flax import struct

from transformer_jax.nn.lora import with_adapters

FROZEN = "frozen"
"""Name of the field of parameters that training does not change."""

OPTIONAL_FIELDS = {"rate": 1.0, "typical_norm": 0.0}
"""Optional state fields, and the value each gets when a resumed run starts to use it."""


class TrainState(struct.PyTreeNode):
    """State of a training run. With the position in the data, it is enough to resume exactly.

    Attributes:
      step: int32 scalar, steps done.
      params: parameters for evaluation and inference, float32.
      opt_state: state of the optimizer.
      rng: raw key data; each step folds its number into it.
      live: parameters that the optimizer updates, if `params` are their moving average; else None.
      rate: float32 scalar, factor of the learning rate, if a plateau of validation scores can lower
        it; else None.
      typical_norm: float32 scalar, running mean of the gradient norm, 0 before the first step, if
        spikes are detected; else None.
      frozen: parameters of other runs, by name, which the loss reads and the optimizer leaves as
        they are: "base" if `params` are LoRA adapters, "reference", "teacher". Checkpoints do not
        include them.
    """

    step: jax.Array
    params: Any
    opt_state: optax.OptState
    rng: jax.Array
    live: Any = None
    rate: jax.Array | None = None
    typical_norm: jax.Array | None = None
    frozen: Mapping[str, Any] = struct.field(default_factory=dict)

    @classmethod
    def create(
        cls,
        params: Any,
        optimizer: optax.GradientTransformation,
        rng: jax.Array,
        *,
        keeps_average: bool = False,
        lowers_rate: bool = False,
        detects_spikes: bool = False,
        frozen: Mapping[str, Any] | None = None,
    ) -> Self:
        """Makes the state before the first step."""
        return cls(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            rng=jax.random.key_data(rng),
            live=params if keeps_average else None,
            rate=jnp.ones((), jnp.float32) if lowers_rate else None,
            typical_norm=jnp.zeros((), jnp.float32) if detects_spikes else None,
            frozen=dict(frozen or {}),
        )

    @property
    def trained(self) -> Any:
        return self.params if self.live is None else self.live

    @property
    def model_params(self) -> Any:
        """Parameters for the model: `params`, or the base with these adapters."""
        return self.with_base(self.params)

    @property
    def saved(self) -> Self:
        """The part of the state that checkpoints include."""
        return self.replace(frozen={})

    @property
    def evaluated(self) -> Self:
        """The part of the state that evaluations read: `params` and the frozen parameters."""
        return self.replace(opt_state=(), live=None, rate=None, typical_norm=None)

    def with_base(self, params: Any) -> Any:
        """Adds the base to adapters; returns parameters unchanged if there is no base."""
        return with_adapters(self.frozen["base"], params) if "base" in self.frozen else params

    def with_params(self, params: Any) -> Self:
        """Replaces the initial parameters, which also start the moving average."""
        live = None if self.live is None else jax.tree.map(jnp.copy, params)
        return self.replace(params=params, live=live)
