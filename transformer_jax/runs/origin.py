"""The run that another one starts from (`train.init_from`), and what that one takes over of it."""

import json
from collections.abc import Mapping
from typing import Any

from transformer_jax.runs.workdir import CONFIG, with_files
from transformer_jax.runtime.files import SETTINGS_BYTES, read_regular

_OF_TRAINING = "dropout_rate"
"""Ends the names of options that belong to a training, not to its parameters."""


_ENCODER_ONLY, _ENCODER_DECODER = "encoder_only", "encoder_decoder"
_OF_ONE_STACK = ("architecture", "num_layers", "num_token_types", "tie_embeddings")


def model_options(init_from: str | None, architecture: str | None = None) -> dict[str, Any]:
    """The options of a run's model, {"model.field": value}: the defaults of a run that starts from
    its parameters. None where there is no such run; who reads its parameters says so.

    Args:
      init_from: workdir of the run to start from.
      architecture: of the run that starts, where its config names one. An encoder-decoder takes
        from an encoder alone what is to be said of its encoder.
    """
    if not init_from:
        return {}
    try:
        content = json.loads(
            read_regular(with_files(init_from, (CONFIG,)) / CONFIG, SETTINGS_BYTES)
        )
        model = content["model"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    if not isinstance(model, Mapping):
        return {}
    kept = {name: one for name, one in model.items() if not name.endswith(_OF_TRAINING)}
    if (kept.get("architecture"), architecture) == (_ENCODER_ONLY, _ENCODER_DECODER):
        kept["num_encoder_layers"] = kept.get("num_layers")
        kept = {name: one for name, one in kept.items() if name not in _OF_ONE_STACK}
    return {f"model.{name}": one for name, one in kept.items()}
