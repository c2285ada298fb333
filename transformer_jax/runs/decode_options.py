"""How one call of a run decodes: the section `decode` with what the call gives."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.runs.settings import parsed
from transformer_jax.tasks.abilities import NamesOptions
from transformer_jax.tasks.interface import Task


def decode_options(
    section: DecodeConfig, task: Task, use: str, given: Mapping[str, Any]
) -> DecodeConfig:
    """The section `decode` of a run with the values given.

    Args:
      section: of the run.
      task: of the run.
      use: "predict", "evaluate" or "stream".
      given: fields of the section.

    Raises:
      UserError: a value cannot be, or would do nothing.
    """
    typed = parsed({f"decode.{name}": value for name, value in given.items()}, use)
    values = {name: typed[f"decode.{name}"] for name in given}
    try:
        options = dataclasses.replace(section, **values)
    except ValueError as error:
        raise UserError(f"decode: {error}") from error
    for name in given:
        if name in _unread(use, task):
            raise UserError(f"decode: {name} does nothing in {use} of this task; leave it out")
    if ignored := options.ignored(given):
        raise UserError(
            f"decode: {ignored[0]} does nothing in the search that is chosen; leave it out, or "
            "choose another search"
        )
    return options


def _unread(use: str, task: Task) -> set[str]:
    """The fields of the section `decode` that a task does not read: in `predict`, `evaluate` or
    `stream`."""
    if not isinstance(task, NamesOptions):
        return set()
    read = {"weights", *(task.evaluates_by if use == "evaluate" else task.predicts_by)}
    if use == "stream":
        read -= {"num_outputs", "batch_size"}
    return {field.name for field in dataclasses.fields(DecodeConfig)} - read
