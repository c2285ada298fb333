# SPDX-License-Identifier: Apache-2.0
"""Rematerialization: layers are computed again in the backward pass, for less memory."""

import contextlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from transformer_jax.nn.transformer import DecoderLayer, EncoderLayer

_LAYERS = (EncoderLayer, DecoderLayer)

HOST = "pinned_host"
"""JAX's name of the memory in which "offload" saves results."""

POLICIES: dict[str, Any] = {
    "full": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "offload": jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", HOST),
}
"""Results of a layer that are saved besides its input. "full": none; "dots": products with
parameters, the most expensive to compute again; "offload": the same, in the host's memory."""

REMAT = ("none", *POLICIES)
"""Values of `train.remat`."""


def rematerialized_layers(remat: str) -> contextlib.AbstractContextManager[None]:
    """Context: inside, layers save only their input and the results that the policy names; the
    backward pass computes the rest again (Chen et al. 2016). With "none" all results are saved."""
    inside: list[nn.Module] = []

    def intercept(method: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        if inside or not isinstance(context.module, _LAYERS) or context.method_name != "__call__":
            return method(*args, **kwargs)
        flags = tuple(i for i, arg in enumerate(args, 1) if isinstance(arg, bool))
        again = nn.remat(
            lambda layer, *args: layer(*args, **kwargs),
            static_argnums=flags,
            policy=POLICIES[remat],
            # A layer without a parent is the body of a scan (`nn.layer_scan`), where XLA cannot
            # merge the two computations anyway.
            prevent_cse=context.module.parent is not None,
        )
        inside.append(context.module)  # the call below is intercepted again
        try:
            return again(context.module, *args)
        finally:
            inside.pop()

    return contextlib.nullcontext() if remat == "none" else nn.intercept_methods(intercept)
