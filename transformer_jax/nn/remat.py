"""Less memory for more time: layers that are computed again in the backward pass."""

import contextlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from transformer_jax.nn.transformer import DecoderLayer, EncoderLayer

_LAYERS = (EncoderLayer, DecoderLayer)

HOST = "pinned_host"
"""The memory, by the name that JAX has for it, that "offload" keeps results in."""

POLICIES: dict[str, Any] = {
    "full": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "offload": jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", HOST),
}
"""What is kept of a layer besides its input: nothing; the products with parameters, which cost most
to compute again; the same, in the memory of the host."""

REMAT = ("none", *POLICIES)
"""What `train.remat` may be."""


def rematerialized_layers(remat: str) -> contextlib.AbstractContextManager[None]:
    """A context: of each layer applied inside it, only its input and what the policy names is kept
    for the backward pass, which computes the rest again (Chen et al. 2016); "none" keeps all."""
    inside: list[nn.Module] = []

    def intercept(method: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        if inside or not isinstance(context.module, _LAYERS) or context.method_name != "__call__":
            return method(*args, **kwargs)
        flags = tuple(i for i, arg in enumerate(args, 1) if isinstance(arg, bool))
        again = nn.remat(
            lambda layer, *args: layer(*args, **kwargs),
            static_argnums=flags,
            policy=POLICIES[remat],
            # A layer outside of a stack is the body of a scan (`nn.layer_scan`), whose passes XLA
            # cannot merge anyway.
            prevent_cse=context.module.parent is not None,
        )
        inside.append(context.module)  # the call below comes through here once more
        try:
            return again(context.module, *args)
        finally:
            inside.pop()

    return contextlib.nullcontext() if remat == "none" else nn.intercept_methods(intercept)
