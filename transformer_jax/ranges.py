# SPDX-License-Identifier: Apache-2.0
"""Limits of config fields: annotations of their types, and the check of a whole dataclass.

Example:
  >>> @dataclasses.dataclass(frozen=True)
  ... class Config:
  ...     width: Size = 512
  ...     engine: Annotated[str, OneOf("jit", "pmap")] = "jit"
  ...     def __post_init__(self) -> None:
  ...         check_fields(self)
  >>> Config(width=0)
  ValueError: width is 0; it must lie in [1, 65_536]
"""

import contextlib
import dataclasses
import functools
import math
import re
import reprlib
import typing
from typing import Annotated, Any, Protocol

import numpy as np

Words = tuple[str | None, ...]
"""Values of a field besides those of its type."""
_SHORT = reprlib.Repr(maxstring=200, maxlong=200, maxother=200)


def short_repr(value: Any) -> str:
    """Shortens the repr of a value for messages: one line of bounded length."""
    return _SHORT.repr(value)


def read_text(text: str) -> Any:
    """The value of a text: None, True, False or a finite number; else the text itself."""
    word = text.strip().lower()
    words = {"none": None, "true": True, "false": False}
    if word in words:
        return words[word]
    with contextlib.suppress(ValueError):
        return int(word)
    with contextlib.suppress(ValueError):
        number = float(word)
        return number if math.isfinite(number) else text
    return text


class Limit(Protocol):
    """Annotation of a field's type that restricts its values."""

    def violation(self, value: Any, type_: type) -> str | None:
        """Rest of the error message after the value; None if the value is allowed."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Finite interval of numbers.

    Attributes:
      least, most: bounds.
      ends: brackets of the interval: "[]", "[)", "(]" or "()".
    """

    least: float
    most: float
    ends: str = "[]"

    def violation(self, value: Any, type_: type) -> str | None:
        kinds = (int, np.integer) if type_ is int else (int, float, np.number)
        if isinstance(value, bool) or not isinstance(value, kinds):  # True is an int to isinstance
            return f"; it must be of type {type_.__name__}"
        inside = self.least <= value <= self.most  # never so for NaN
        inside &= self.ends[0] == "[" or value != self.least
        inside &= self.ends[1] == "]" or value != self.most
        return None if inside else f"; it must lie in {self}"

    def __str__(self) -> str:
        least, most = (_number(end) for end in (self.least, self.most))
        return f"{self.ends[0]}{least}, {most}{self.ends[1]}"


class OneOf:
    """A choice among names."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __repr__(self) -> str:
        return f"OneOf({', '.join(map(repr, self.names))})"

    def violation(self, value: Any, type_: type) -> str | None:
        return None if value in self.names else f", not one of {', '.join(self.names)}"


@dataclasses.dataclass(frozen=True)
class RegularExpression:
    """A text that the module `re` compiles."""

    def violation(self, value: Any, type_: type) -> str | None:
        try:
            re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            return f", not a regular expression: {error}"
        return None


Size = Annotated[int, Range(1, 65_536)]
"""Width of a layer."""
Layers = Annotated[int, Range(1, 256)]
"""Number of layers. Compiling a layer takes seconds, so a mistyped number must not be huge."""
Heads = Annotated[int, Range(1, 1024)]
Cap = Annotated[float, Range(1e-3, 1e6)]
"""Soft cap of logits."""
Length = Annotated[int, Range(1, 2**20)]
"""Number of tokens of a sequence, or a distance between two."""
Steps = Annotated[int, Range(1, 10**9)]
"""Number of steps."""
Seed = Annotated[int, Range(0, 2**31 - 1)]
"""Seed of random numbers; JAX uses 32 bits of it, with a sign."""
DropoutRate = Annotated[float, Range(0, 1, "[)")]
PathPattern = Annotated[str, RegularExpression()]
"""Expression that is searched for in the paths of parameters."""


def check_fields(config: Any) -> None:
    """Checks all fields of a dataclass against their annotations.

    Raises:
      ValueError: one line with the field, its value and the allowed values.
    """
    for name, (_, words, _) in declared_fields(config.__class__).items():
        value = getattr(config, name)
        reason = violation(config.__class__, name, value)
        if reason is not None:
            also = "".join(f", or be {word or 'none'}" for word in words)
            raise ValueError(f"{name} is {short_repr(value)}{reason}{also}")


def violation(cls: type, field: str, value: Any) -> str | None:
    """The rest of a message, after the value, if a field of a dataclass may not have it.

    None if it may.
    """
    type_, words, limits = declared_fields(cls).get(field, (object, (), ()))
    if isinstance(value, str | None) and value in words:  # such as None or "auto"
        return None
    for limit in limits:
        reason = limit.violation(value, type_)
        if reason is not None:
            return reason
    return None


@functools.cache
def declared_fields(cls: Any) -> dict[str, tuple[Any, Words, tuple[Limit, ...]]]:
    """(type, words, limits) of each field of a dataclass: `Size | None` has the word None,
    `Size | Literal["auto"]` the word "auto", `Size` none; all have the limits of `Size`."""
    hints = typing.get_type_hints(cls, include_extras=True)
    declared = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        limits = getattr(hint, "__metadata__", ())  # of the type and its words, or of the type
        hint = hint.__origin__ if limits else hint
        type_, *others = typing.get_args(hint) or (hint,)
        words = [word for other in others for word in typing.get_args(other) or (None,)]
        if hasattr(type_, "__metadata__"):
            type_, limits = type_.__origin__, type_.__metadata__
        declared[field.name] = (type_, tuple(words), limits)
    return declared


def _number(value: float) -> str:
    if isinstance(value, int) or (math.isfinite(value) and value.is_integer() and value < 1e6):
        return f"{int(value):_}"
    return f"{value:g}"
