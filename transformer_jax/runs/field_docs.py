# SPDX-License-Identifier: Apache-2.0
"""Documentation of the config fields, read from the dataclasses of the sections.

Names, types and defaults come from the dataclasses, meanings from the `Attributes:` of their
docstrings. docs/configuration.md and the verb `fields` are made of it.
"""

import dataclasses
import fnmatch
import inspect
import re
import typing
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.models import MODELS
from transformer_jax.ranges import OneOf
from transformer_jax.runs.settings import CHOICES, DEFAULTS, FIELDS, SECTIONS, Settings
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
    """

    field: str
    type: str
    default: Any
    other_defaults: dict[str, Any]
    choices: tuple[str, ...]
    meaning: str

    def as_text(self) -> str:
        """Formats the documentation as lines for a terminal."""
        others = "".join(f"; {as_override(v)} for {k}" for k, v in self.other_defaults.items())
        lines = [
            f"{self.field}  ({self.type}; default {as_override(self.default)}{others})",
            f"    {self.meaning}",
        ]
        if self.choices:
            lines.append(f"    one of: {', '.join(self.choices)}")
        return "\n".join(lines)


def find_fields(pattern: str = "") -> list[FieldDoc]:
    """Documentation of the fields whose name contains `pattern`, or matches it as a glob.

    Raises:
      UserError: no field does; the nearest ones are named.
    """
    is_glob = any(char in pattern for char in "*?[")
    matching = pattern if is_glob else f"*{pattern}*"
    names = fnmatch.filter(FIELDS, matching)
    if not names:
        last = {name.rpartition(".")[2]: name for name in FIELDS}
        near = suggest_fields(pattern, FIELDS) or [last.get(nearest(pattern, last) or "", "")]
        hint = " or ".join(near)
        hint = f"; did you mean {hint}?" if hint else "; `fields` lists all"
        raise UserError(f"no config field matches {pattern!r}{hint}")
    meanings = {
        name: meaning
        for section in SECTIONS
        for fields, meaning in documented(section).items()
        for name in fields
    } | {"seed": attributes(Settings)[("seed",)]}
    return [
        FieldDoc(
            name,
            type_name(name),
            DEFAULTS[name],
            other_defaults(name),
            choices(name),
            meanings[name],
        )
        for name in names
    ]


def attributes(cls: type) -> dict[tuple[str, ...], str]:
    """Reads {names: meaning} from the Attributes of a docstring; an entry may have several names.

    Raises:
      ValueError: the docstring has no Attributes.
    """
    _, found, rest = (inspect.getdoc(cls) or "").partition("\nAttributes:\n")
    if not found:
        raise ValueError(f"the docstring of {cls.__name__} has no Attributes")
    block = re.split(r"\n(?=\S)", rest)[0]
    entries = re.split(r"^  (\w+(?:, \w+)*): ", block, flags=re.M)[1:]
    pairs = zip(entries[::2], entries[1::2], strict=True)
    return {tuple(names.split(", ")): " ".join(meaning.split()) for names, meaning in pairs}


def documented(section: str) -> dict[tuple[str, ...], str]:
    """Returns {("section.field", ...): meaning} of a section, base classes included."""
    return {
        tuple(f"{section}.{name}" for name in names): text
        for cls in reversed(SECTIONS[section].__mro__)
        if dataclasses.is_dataclass(cls)
        for names, text in attributes(cls).items()
    }


def type_name(field: str) -> str:
    """Type of a field's values, such as "int or none"."""
    return FIELDS[field].type.__name__ + (" or none" if FIELDS[field].optional else "")


def other_defaults(field: str) -> dict[str, Any]:
    """Defaults of the tasks and architectures that have one of their own for a field."""
    owners = {**TASKS, **MODELS}
    found = {owner: getattr(kind, "defaults", {}) for owner, kind in owners.items()}
    return {owner: defaults[field] for owner, defaults in found.items() if field in defaults}


def choices(field: str) -> tuple[str, ...]:
    """The values that a field may have; empty if its type does not list them."""
    if field in CHOICES:
        return tuple(CHOICES[field])
    if FIELDS[field].type is bool:
        return "true", "false"
    section, _, name = field.rpartition(".")
    hints = typing.get_type_hints(SECTIONS.get(section, Settings), include_extras=True)
    hint = hints[name]
    for part in (hint, *typing.get_args(hint)):
        for limit in getattr(part, "__metadata__", ()):
            if isinstance(limit, OneOf):
                return limit.names
    return ()


def as_override(value: Any) -> str:
    """Formats a value as in an override."""
    if type(value) is int and value >= 10_000:
        return f"{value:_}"
    return value if isinstance(value, str) else str(value).lower()
