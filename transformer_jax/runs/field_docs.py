# SPDX-License-Identifier: Apache-2.0
"""Documentation of the config fields, read from the dataclasses of the sections.

Names, types and defaults come from the dataclasses, meanings from the `Attributes:` of their
docstrings. docs/configuration.md and the verb `fields` are made of it.
"""

import dataclasses
import fnmatch
import inspect
import re
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.models import MODELS
from transformer_jax.ranges import OneOf, declared_fields
from transformer_jax.runs.settings import CHOICES, SECTIONS, Settings, tables
from transformer_jax.suggestions import nearest, suggest_fields
from transformer_jax.tasks import TASKS


@dataclasses.dataclass(frozen=True)
class FieldDoc:
    """Documentation of a field.

    Attributes:
      field: "section.field".
      type: name of the type of its values, such as "int or none".
      default: the default of its dataclass.
      other_defaults: other defaults, {name of a task or architecture: default}.
      choices: the values that it may have; empty: any of its type.
      meaning: its entry in the docstring of the section.
      chosen_by: of an option, the choice with which it exists, as "section.field=entry".
    """

    field: str
    type: str
    default: Any
    other_defaults: dict[str, Any]
    choices: tuple[str, ...]
    meaning: str
    chosen_by: str | None = None

    def as_text(self) -> str:
        """Formats the documentation as lines for a terminal."""
        others = "".join(f"; {as_override(v)} for {k}" for k, v in self.other_defaults.items())
        lines = [
            f"{self.field}  ({self.type}; default {as_override(self.default)}{others})",
            self.meaning,
        ]
        if self.choices:
            lines.append(f"one of: {', '.join(self.choices)}")
        if self.chosen_by:
            lines.append(f"an option of {self.chosen_by}")
        return "\n    ".join(lines)


def find_fields(pattern: str = "") -> list[FieldDoc]:
    """Documentation of the fields whose name contains `pattern`, or matches it as a glob.

    Raises:
      UserError: no field does; the nearest ones are named.
    """
    is_glob = any(char in pattern for char in "*?[")
    fields = tables().fields
    names = fnmatch.filter(fields, pattern if is_glob else f"*{pattern}*")
    if not names:
        by_last_part = {name.rpartition(".")[2]: name for name in fields}
        similar = suggest_fields(pattern, fields)
        last_part = nearest(pattern, by_last_part)
        if not similar and last_part:
            similar = [by_last_part[last_part]]
        hint = f"did you mean {' or '.join(similar)}?" if similar else "`fields` lists all"
        raise UserError(f"no config field matches {pattern!r}; {hint}")
    owners = choosers()
    meanings = {
        name: meaning
        for group in [*SECTIONS, *owners]
        for entry, meaning in documented(group).items()
        for name in entry
    } | {"seed": attributes(Settings)[("seed",)]}
    return [
        FieldDoc(
            field=name,
            type=type_name(name),
            default=fields[name].default,
            other_defaults=other_defaults(name),
            choices=choices(name),
            meaning=meanings[name],
            chosen_by=owners.get(name.rpartition(".")[0]),
        )
        for name in names
    ]


def choosers() -> dict[str, str]:
    """Entries with options and the choice that each needs, {"section.entry": "field=entry"}."""
    entries = tables().choosers.items()
    return {entry: f"{chooser}={entry.partition('.')[2]}" for entry, chooser in entries}


def attributes(cls: type) -> dict[tuple[str, ...], str]:
    """Reads {names: meaning} from the Attributes of a docstring; an entry may have several names.

    Raises:
      ValueError: the docstring has no Attributes.
    """
    _, heading, rest = (inspect.getdoc(cls) or "").partition("\nAttributes:\n")
    if not heading:
        raise ValueError(f"the docstring of {cls.__name__} has no Attributes")
    block = re.split(r"\n(?=\S)", rest)[0]
    entries = re.split(r"^  (\w+(?:, \w+)*): ", block, flags=re.M)[1:]
    pairs = zip(entries[::2], entries[1::2], strict=True)
    return {tuple(names.split(", ")): " ".join(meaning.split()) for names, meaning in pairs}


def group_class(group: str) -> type:
    """Dataclass of a section, of the options "section.entry", or of the whole config ("")."""
    return (SECTIONS | tables().options).get(group, Settings)


def documented(group: str) -> dict[tuple[str, ...], str]:
    """Returns {("section.field", ...): meaning} of a section, base classes included; or the same of
    the options "section.entry"."""
    return {
        tuple(f"{group}.{name}" for name in names): text
        for cls in reversed(group_class(group).__mro__)
        if dataclasses.is_dataclass(cls)
        for names, text in attributes(cls).items()
    }


def type_name(field: str) -> str:
    """Type of a field's values, such as "int or none"."""
    declared = tables().fields[field]
    return " or ".join([declared.type.__name__, *(word or "none" for word in declared.words)])


def other_defaults(field: str) -> dict[str, Any]:
    """Defaults of the tasks and architectures that have one of their own for a field."""
    owners = {**TASKS, **MODELS}
    by_owner = {owner: getattr(kind, "defaults", {}) for owner, kind in owners.items()}
    return {owner: defaults[field] for owner, defaults in by_owner.items() if field in defaults}


def choices(field: str) -> tuple[str, ...]:
    """The values that a field may have; empty if its type does not list them."""
    if field in CHOICES:
        return tuple(CHOICES[field])
    group, _, name = field.rpartition(".")
    type_, words, limits = declared_fields(group_class(group))[name]
    if type_ is bool and not words:
        return "true", "false"
    return next((limit.names for limit in limits if isinstance(limit, OneOf)), ())


def as_override(value: Any) -> str:
    """Formats a value as in an override."""
    if type(value) is int and value >= 10_000:
        return f"{value:_}"
    return value if isinstance(value, str) else str(value).lower()
