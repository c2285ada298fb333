# SPDX-License-Identifier: Apache-2.0
"""Fields of the config.json of older runs, in terms of the fields that replaced them."""

from collections.abc import Mapping
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.logs.run_log import LoggingConfig
from transformer_jax.models.recurrent import RADIUS

_DROPPED = (
    *("optimizer.initial_accumulator", "optimizer.cycle_steps", "optimizer.cycle_growth"),
    "data.synthetic_seed",
)
_GONE = {
    ("optimizer.name", "adagrad"): "adam",
    ("optimizer.schedule", "cosine_cycles"): "cosine",
}
"""(field, entry that is gone) -> entry with which the run can be used."""


def upgraded(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values of today's fields that mean the same as those of an older config.

    Args:
      values: {"section.field": value}.
      where: the file that holds them, for messages.

    Raises:
      UserError: the run uses something that is gone and has no equivalent.
    """
    current = {name: value for name, value in values.items() if name not in _DROPPED}
    every = current.pop("model.full_attention_every", None)
    if every is not None:  # every n-th layer had no window
        is_number = isinstance(every, int)  # anything else is refused as a pattern
        pattern = f"{every - 1} x default | attention_window=none" if is_number else every
        current["model.layers"] = pattern
    radius = current.pop("model.attention_radius", RADIUS)
    if current.get("model.attention_span") == "local_p" and radius != RADIUS:
        raise UserError(
            f"{where}: config.model.attention_radius is {radius!r}, and is {RADIUS} since "
            "2026-11-28: use a version before that"
        )
    remat = current.get("train.remat")
    if isinstance(remat, bool):  # a switch, before there were several policies
        current["train.remat"] = "full" if remat else "none"
    project = current.pop("logging.wandb", None)
    if project is not None:  # short for the tracker wandb with a project
        trackers = current.get("logging.trackers", LoggingConfig.trackers)
        current["logging.trackers"] = "wandb" if trackers is None else f"{trackers},wandb"
        current["logging.project"] = project
    for (field, former), present in _GONE.items():
        if current.get(field) == former:
            raise UserError(
                f"{where}: config.{field} is {former!r}, which is gone since 2026-11-28: to use "
                f"the run, write {present!r} there; to train it further, use a version before that"
            )
    return current
