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
    meanings = {
        name: meaning
        for group in ["", *SECTIONS, *tables().options]
        for entry, meaning in documented(group).items()
        for name in entry
    }
    return [_field_doc(name, meanings[name]) for name in names]


def _field_doc(name: str, meaning: str) -> FieldDoc:
    group, _, last = name.rpartition(".")
    chooser = tables().choosers.get(group)
    type_, words, limits = declared_fields(_group_class(group))[last]
    choices: tuple[str, ...] = ("true", "false") if type_ is bool and not words else ()
    for limit in limits:
        choices = limit.names if isinstance(limit, OneOf) else choices
    others = {owner: getattr(kind, "defaults", {}) for owner, kind in {**TASKS, **MODELS}.items()}
    return FieldDoc(
        field=name,
        type=" or ".join([type_.__name__, *(word or "none" for word in words)]),
        default=tables().fields[name].default,
        other_defaults={owner: of[name] for owner, of in others.items() if name in of},
        choices=tuple(CHOICES.get(name, choices)),
        meaning=meaning,
        chosen_by=chooser and f"{chooser}={group.partition('.')[2]}",
    )


def _group_class(group: str) -> type:
    """Dataclass of a section, of the options "section.entry", or of the whole config ("")."""
    return (SECTIONS | tables().options).get(group, Settings)


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


def documented(group: str) -> dict[tuple[str, ...], str]:
    """Returns {("section.field", ...): meaning} of a section, base classes included; or the same of
    the options "section.entry", or of the whole config ("")."""
    return {
        tuple(f"{group}.{name}".lstrip(".") for name in names): text
        for cls in reversed(_group_class(group).__mro__)
        if dataclasses.is_dataclass(cls)
        for names, text in attributes(cls).items()
    }


def as_override(value: Any) -> str:
    """Formats a value as in an override."""
    if type(value) is int and value >= 10_000:
        return f"{value:_}"
    return value if isinstance(value, str) else str(value).lower()
