# SPDX-License-Identifier: Apache-2.0
"""Fields of the config.json of older runs, in terms of the fields that replaced them."""

from collections.abc import Callable, Mapping
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.logs.run_log import LoggingConfig
from transformer_jax.models.recurrent import RADIUS

Fields = Mapping[str, Any]


def upgraded(values: Fields, where: str) -> dict[str, Any]:
    """The values of today's fields that mean the same as those of an older config.

    Args:
      values: {"section.field": value}.
      where: the file that holds them, for messages.

    Raises:
      UserError: the run uses something that is gone and has no equivalent.
    """
    current = {name: value for name, value in values.items() if name not in _DROPPED}
    for field, replace in _REPLACEMENTS.items():
        if field in current:
            value = current.pop(field)
            try:
                current |= replace(value, current)
            except ValueError as error:
                raise UserError(f"{where}: config.{field} is {value!r}, {error}") from error
    for (field, former), present in _GONE.items():
        if current.get(field) == former:
            raise UserError(
                f"{where}: config.{field} is {former!r}, which is gone since 2026-11-28: to use "
                f"the run, write {present!r} there; to train it further, use a version before that"
            )
    return current


def _layers(every: Any, values: Fields) -> Fields:
    """Every n-th layer had no window."""
    if every is None:
        return {}
    is_number = isinstance(every, int)  # anything else is refused as a pattern
    return {
        "model.layers": f"{every - 1} x default | attention_window=none" if is_number else every
    }


def _trackers(project: Any, values: Fields) -> Fields:
    """Short for the tracker wandb with a project."""
    if project is None:
        return {}
    trackers = values.get("logging.trackers", LoggingConfig.trackers)
    return {
        "logging.trackers": "wandb" if trackers is None else f"{trackers},wandb",
        "logging.project": project,
    }


def _remat(value: Any, values: Fields) -> Fields:
    """A switch, before there were several policies."""
    return {"train.remat": {"True": "full", "False": "none"}.get(str(value), value)}


def _radius(radius: Any, values: Fields) -> Fields:
    if values.get("model.attention_span") == "local_p" and radius != RADIUS:
        raise ValueError(f"and is {RADIUS} since 2026-11-28: use a version before that")
    return {}


_GONE = {
    ("optimizer.name", "adagrad"): "adam",
    ("optimizer.schedule", "cosine_cycles"): "cosine",
}
"""(field, entry that is gone) -> entry with which the run can be used."""
_DROPPED = (
    *("optimizer.initial_accumulator", "optimizer.cycle_steps", "optimizer.cycle_growth"),
    "data.synthetic_seed",
)
_REPLACEMENTS: dict[str, Callable[[Any, Fields], Fields]] = {
    "model.full_attention_every": _layers,
    "model.attention_radius": _radius,
    "train.remat": _remat,
    "logging.wandb": _trackers,
}
"""Former field, or field with former values -> function from its value and the other fields to what
replaces it."""
