# SPDX-License-Identifier: Apache-2.0
"""Config fields, as dataclasses declare them: those of a section, and the options of a component.

A registry entry may have options, a frozen dataclass. They are config fields "section.entry.option"
that exist while the entry is chosen.

Example:
  >>> @dataclasses.dataclass(frozen=True)
  ... class SnakeOptions:
  ...     '''Options of the activation `snake`.
  ...
  ...     Attributes:
  ...       frequency: a of x + sin(a x)^2 / a.
  ...     '''
  ...     frequency: Annotated[float, Range(0, 100, "(]")] = 1.0
"""

import dataclasses
import functools
import sys
from typing import Any

import numpy as np

from transformer_jax.ranges import Words, declared_fields, read_text, short_repr

GIVEN = {"given": True}
"""Metadata of fields of a section whose value is computed, never set in a config file."""

_TYPES = (int, float, bool, str)


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of the config.

    Attributes:
      words: other values that it may have: None, or a word such as "auto".
      default: the default of its dataclass.
    """

    type: type
    words: Words
    default: Any

    def typed(self, value: Any) -> Any:
        """The value in the type of the field; a text, as in a shell, is parsed.

        Raises:
          ValueError: it has no value of this type.
        """
        # Most values have the type of their field, and are no words such as "none".
        if type(value) is self.type and self.type is not str:
            return value
        if isinstance(value, np.generic):  # from a notebook
            value = value.item()
        literal = read_text(value) if isinstance(value, str) else value
        if isinstance(literal, str | None) and literal in self.words:
            return literal
        if self.type is not str:
            value = literal
        if self.type is int and type(value) is float and value.is_integer():  # 5e3 is one
            value = int(value)
        if self.type is float and type(value) is int and abs(value) <= sys.float_info.max:
            value = float(value)  # a larger int has no float, and is refused below
        if type(value) is not self.type:  # True is an int to isinstance
            raise ValueError(f"is {short_repr(value)}; it must be of type {self.type.__name__}")
        return value


@functools.cache
def fields_of(prefix: str, cls: Any) -> dict[str, Field]:
    """The fields of a dataclass that a config can set, {"prefix.field": field}."""
    fields = {}
    for field in dataclasses.fields(cls):
        if not field.metadata.get("given"):
            type_, words, _ = declared_fields(cls)[field.name]
            fields[f"{prefix}.{field.name}"] = Field(type_, words, field.default)
    return fields


@dataclasses.dataclass(frozen=True)
class Configurable:
    """Base of the sections whose components may have options.

    Attributes:
      options: options of the chosen components, an instance of each one's dataclass.
    """

    options: tuple[Any, ...] = dataclasses.field(default=(), metadata=GIVEN, kw_only=True)

    def options_of[Options](self, cls: type[Options]) -> Options:
        """Options of the chosen component that declares this class; its defaults if none does.

        Classes are compared by name, so that a notebook's cell may define one again.
        """
        for options in self.options:
            if _name(type(options)) == _name(cls):
                return options
        for options in self.options:  # else those of a subclass
            if _name(cls) in map(_name, type(options).__mro__):
                return options
        return cls()


def _name(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def fault_of_options(cls: Any) -> str | None:
    """The reason why a class cannot declare options; None if it can."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        return "is no dataclass"
    if not getattr(cls, "__dataclass_params__").frozen:  # noqa: B009
        return "is not frozen: write @dataclasses.dataclass(frozen=True)"
    for name, field in fields_of("", cls).items():
        if field.type not in _TYPES:
            allowed = "int, float, bool or str, or one of them | None"
            return f"has the field {name[1:]} of type {field.type}; it must be {allowed}"
        if field.default is dataclasses.MISSING:
            return f"has the field {name[1:]} without a default"
    return None
