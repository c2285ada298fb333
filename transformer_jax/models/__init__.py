# SPDX-License-Identifier: Apache-2.0
"""Models, by the names of `model.architecture`, and how to call one with its parameters.

A class may have `defaults`, {"section.field": value} for configs that name it; `reads`, optional
config fields that it reads (without it, all that it does not ignore); `ignores`, common config
fields that it does not read. A field that is set but not read is rejected.
"""

import inspect
from typing import Any

import flax.linen as nn
import jax

from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.models.recurrent import RecurrentEncoderDecoder
from transformer_jax.nn import auxiliary
from transformer_jax.registry import Registry

MODELS: Registry[type[nn.Module]] = Registry(
    "model.architecture",
    {
        "encoder_decoder": EncoderDecoder,
        "decoder_only": DecoderOnly,
        "encoder_only": EncoderOnly,
        "recurrent": RecurrentEncoderDecoder,
    },
)


def input_names(model: Any) -> list[str]:
    """Names of the arrays that a model's `apply` takes, in order."""
    for method in ("__call__", "unprojected", "features"):
        parameters = inspect.signature(getattr(type(model), method)).parameters.values()
        if all(parameter.kind != parameter.VAR_POSITIONAL for parameter in parameters):
            names = [parameter.name for parameter in parameters]
            return [name for name in names if name not in ("self", "deterministic")]
    raise TypeError(f"{type(model).__name__} names no arguments")


def apply_model(
    model: Any, params: Any, *inputs: Any, rng: jax.Array | None = None, method: str = "__call__"
) -> Any:
    """Applies a model to its inputs, with dropout if there is an rng.

    Auxiliary losses and metrics of its modules go to the context `auxiliary.collect`, if any.

    Args:
      model: takes `deterministic`, as all models here do. It is a Flax module, or has its `apply`
        (`patches`, `ensemble`).
    """
    rngs = None if rng is None else {"dropout": rng}
    collected = auxiliary.current()
    result = model.apply(
        {"params": params},
        *inputs,
        deterministic=rng is None,
        rngs=rngs,
        method=method,
        mutable=False if collected is None else [auxiliary.COLLECTION],
    )
    if collected is None:
        return result
    output, variables = result
    collected.add(variables)
    return output


def apply_method(model: Any, params: Any, method: str, *inputs: Any) -> Any:
    """Applies a method that has no dropout, such as "prefill" or "decode_step"."""
    return model.apply({"params": params}, *inputs, method=method)
