"""Rotary positions and their scaling for longer texts, as a config.json has them."""

from collections.abc import Mapping
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.interop.families.base import Keys, Options
from transformer_jax.nn.config import TransformerConfig

_SCALING = {"factor": "rope_factor"}
_LLAMA3 = {
    **_SCALING,
    "low_freq_factor": "rope_low_factor",
    "high_freq_factor": "rope_high_factor",
    "original_max_position_embeddings": "rope_original_length",
}
_FACTORS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "linear": _SCALING,
    "llama3": _LLAMA3,
}


def read_rope(keys: Keys) -> Options:
    """The options. Versions of transformers before 5 wrote rope_theta and rope_scaling apart.

    Raises:
      UserError: models here have no such scaling, or a number of it is missing.
    """
    given: dict[str, Any] = {
        "rope_theta": keys["rope_theta"],
        "partial_rotary_factor": keys.get("partial_rotary_factor", 1.0),
        **(keys.get("rope_scaling") or {}),
        **(keys.get("rope_parameters") or {}),
    }
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in _FACTORS:
        raise UserError(
            f"config.json: rope_type is {kind!r}; models here have {', '.join(_FACTORS)}"
        )
    factors = _FACTORS[kind]
    if missing := [key for key in factors if key not in given]:
        raise UserError(f"config.json has no {missing[0]}, which rope_type {kind!r} needs")
    return {
        "rope_theta": float(given["rope_theta"]),
        "rope_fraction": float(given["partial_rotary_factor"]),
        "rope_scaling": "none" if kind == "default" else kind,
        **{field: given[key] for key, field in factors.items()},
    }


def written_rope(model: TransformerConfig) -> Keys:
    """The keys, as versions of transformers before 5 wrote them; the inverse of `read_rope`."""
    scaling = None
    if model.rope_scaling != "none":
        factors = _FACTORS[model.rope_scaling].items()
        scaling = {key: getattr(model, field) for key, field in factors}
        scaling["rope_type"] = model.rope_scaling
    return {"rope_theta": model.rope_theta, "rope_scaling": scaling}
