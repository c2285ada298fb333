"""How one call of a run decodes: the section `decode` with what the call gives."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.inference.config import SEARCH_FIELDS, SEARCHES, DecodeConfig, SearchKind
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
        options = dataclasses.replace(section, **_of_other_searches(section, values), **values)
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


def _of_other_searches(section: DecodeConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """Where a search is given: the fields that the section sets for another one, as they are by
    default."""
    if given.get("search") is None:
        return {}
    search = SEARCHES.find(given["search"])
    if not isinstance(search, SearchKind):
        return {}
    names = {name for name in SEARCH_FIELDS if f"decode.{name}" not in search.reads}
    return {name: getattr(DecodeConfig, name) for name in names - set(given)}


def _unread(use: str, task: Task) -> set[str]:
    """The fields of the section `decode` that a task does not read: in `predict`, `evaluate` or
    `stream`."""
    if not isinstance(task, NamesOptions):
        return set()
    read = {"weights", *(task.evaluates_by if use == "evaluate" else task.predicts_by)}
    if use == "stream":
        read -= {"num_outputs", "batch_size"}
    return {field.name for field in dataclasses.fields(DecodeConfig)} - read
