# SPDX-License-Identifier: Apache-2.0
"""Fields of a config that act outside of its run, which a loaded config may not decide.

A config that was loaded may come from strangers. The commands, callbacks, trackers, names on hubs
and addresses in it count only if the user repeats them in this command; local paths are read. A
config that the user writes may name anything.
"""

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any

from transformer_jax.data.examples import Corpus
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.ranges import short_repr
from transformer_jax.runs.settings import Settings

_NAMED = {
    "eval.command": "a command",
    "train.callbacks": "code that training calls",
    "logging.trackers": "a program that receives the records",
    "data.hf_name": "a name on a hub",
    "data.tfds_name": "a name on a hub",
}
_TEXTS = ("task.", "model.")
"""Beginnings of fields that name no files."""
_SPLITS = ("train", "valid", "test")


def acts_outside(field: str, value: Any) -> str | None:
    """Names the kind of place or program outside of the run that a value means; None if none."""
    if not isinstance(value, str) or field.startswith(_TEXTS):
        return None
    stays_inside = {
        "logging.trackers": value == "tensorboard",
        "data.hf_name": Path(value).expanduser().is_dir(),
        "data.tfds_name": ":" not in value,  # a namespace; the names of TFDS itself have none
    }
    if field in _NAMED and not stays_inside.get(field):
        return _NAMED[field]
    return "an address" if "://" in value else None


def refuse_loaded(
    settings: Settings, fields: Collection[str] | None = None, flag: str | None = None
) -> None:
    """Raises UserError if a field acts outside of the run, and only a loaded config sets it.

    Args:
      fields: the fields that are about to act; None: all.
      flag: the flag by which the user repeats the field; None: its override.
    """
    for field in settings.origins if fields is None else fields:
        origin = settings.origin(field)
        value = settings.values.get(field)
        place = acts_outside(field, value) if origin.is_loaded else None
        if fields is not None and origin.is_loaded and "://" in str(value):
            place = place or "an address"  # also of a field that names files in this task alone
        if place:
            raise UserError(
                f"{origin.where}: its {field} is {short_repr(value)}, {place}, and a config may "
                f"come from strangers; if you want it, repeat it: {flag or f'--config.{field}'}="
                f"{shlex.quote(str(value))} (in Python as an argument or override)"
            )


def open_data(settings: Settings, split: str) -> Corpus:
    """Opens a split of a run's data.

    Raises:
      UserError: it cannot be used, or is at a place that only a loaded config names.
    """
    others = tuple(f"data.{name}_" for name in _SPLITS if name != split.partition("_")[0])
    read = [
        name for name in settings.values if name.startswith("data.") and not name.startswith(others)
    ]
    refuse_loaded(settings, read)
    return open_split(settings.data, split)
