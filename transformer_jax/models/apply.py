"""A model called with its parameters: the one place that knows how Flax takes them."""

from typing import Any

import flax.linen as nn
import jax


def apply(
    model: nn.Module,
    params: Any,
    *inputs: Any,
    rng: jax.Array | None = None,
    method: str = "__call__",
) -> Any:
    """The model's output for its inputs.

    Args:
      model: takes `deterministic`, as all models here do.
      params: the tree that its `init` made under "params".
      *inputs: what the method takes.
      rng: the key that dropout draws from; None: no dropout.
      method: what is called, such as "unprojected", which also takes `deterministic`.
    """
    rngs = None if rng is None else {"dropout": rng}
    return model.apply(
        {"params": params}, *inputs, deterministic=rng is None, rngs=rngs, method=method
    )


def call(model: nn.Module, params: Any, method: str, *inputs: Any) -> Any:
    """What another method of the model returns, such as "prefill"."""
    return model.apply({"params": params}, *inputs, method=method)
