"""The run that another one starts from (`train.init_from`), and what that one takes over of it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.runs.workdir import CONFIG
from transformer_jax.runtime.files import SETTINGS_BYTES, read_regular

_OF_TRAINING = "dropout_rate"
"""Ends the names of options that belong to a training, not to its parameters."""


def model_options(init_from: str | None) -> dict[str, Any]:
    """The options of a run's model, {"model.field": value}: the defaults of a run that starts from
    its parameters. None where there is no such run; who reads its parameters says so."""
    if not init_from:
        return {}
    try:
        content = json.loads(read_regular(Path(init_from) / CONFIG, SETTINGS_BYTES))
        model = content["model"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    if not isinstance(model, Mapping):
        return {}
    return {f"model.{name}": one for name, one in model.items() if not name.endswith(_OF_TRAINING)}
