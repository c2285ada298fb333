"""Less memory for more time: layers that are computed again in the backward pass."""

import contextlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn

from transformer_jax.nn.decoder import DecoderLayer
from transformer_jax.nn.encoder import EncoderLayer

_LAYERS = (EncoderLayer, DecoderLayer)


def rematerialized_layers() -> contextlib.AbstractContextManager[None]:
    """A context: of each layer applied inside it, only the input is kept for the backward pass,
    which computes the rest again (Chen et al. 2016)."""
    inside: list[nn.Module] = []

    def intercept(method: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        if inside or not isinstance(context.module, _LAYERS) or context.method_name != "__call__":
            return method(*args, **kwargs)
        flags = tuple(i for i, arg in enumerate(args, 1) if isinstance(arg, bool))
        again = nn.remat(lambda layer, *args: layer(*args, **kwargs), static_argnums=flags)
        inside.append(context.module)  # the call below comes through here once more
        try:
            return again(context.module, *args)
        finally:
            inside.pop()

    return nn.intercept_methods(intercept)
