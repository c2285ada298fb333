# SPDX-License-Identifier: Apache-2.0
"""Search spaces: the values of config fields that a search tries.

A space is plain data: {"section.field": values}, where values are a list, or an interval
{"low": 1e-4, "high": 1e-2, "log": True}.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.ranges import short_repr
from transformer_jax.runs.settings import parsed
from transformer_jax.suggestions import suggest

_DIGITS = 4  # significant, of a number that is drawn; a command line stays readable
_SMALL_GRID = 10_000  # combinations, which are sorted for each trial


@dataclasses.dataclass(frozen=True)
class Choices:
    """A list of values."""

    values: tuple[Any, ...]

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.values)

    def nth(self, index: int) -> Any:
        """A value by its number from 0."""
        return self.values[index]

    def at(self, u: float) -> Any:
        """The value at a quantile `u` in [0, 1)."""
        return self.values[int(u * self.size)]

    def ends(self) -> Sequence[Any]:
        """The values that a config must accept for it to accept all."""
        return self.values

    def as_data(self) -> Any:
        """The values as a sweep file writes them."""
        return list(self.values)


@dataclasses.dataclass(frozen=True)
class Interval:
    """All numbers from `low` to `high`, or the integers among them if both are integers.

    Attributes:
      low, high: the ends, which are included.
      log: draw the logarithm uniformly.

    Raises:
      ValueError: an end is no finite number, the ends are in the wrong order, or there is no
        logarithm.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if type(self.log) is not bool:
            raise ValueError(f"'log' is {short_repr(self.log)}; write True or False")
        for end in (self.low, self.high):
            if type(end) not in (int, float):
                raise ValueError(f"{short_repr(end)} is no number; give a list of values")
            if not math.isfinite(end):
                raise ValueError(f"{end} is no finite number")
        if self.low >= self.high:
            raise ValueError(f"'low' {self.low:g} is not below 'high' {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"'log' needs a 'low' above 0, and it is {self.low:g}")

    @property
    def is_integer(self) -> bool:
        """Returns True if the values are integers."""
        return isinstance(self.low, int)

    @property
    def size(self) -> int | None:
        """Number of values; None if they are real numbers."""
        return int(self.high) - int(self.low) + 1 if self.is_integer else None

    def nth(self, index: int) -> int:
        """An integer by its number from 0."""
        return int(self.low) + index

    def at(self, u: float) -> float:
        """The value at a quantile `u` in [0, 1)."""
        low = self.low
        high = self.high + 1 if self.is_integer else self.high  # so that floor gives `high` too
        value = low * (high / low) ** u if self.log else low + u * (high - low)
        return self.rounded(math.floor(value) if self.is_integer else value)

    def rounded(self, value: float) -> float:
        """A number of few digits in the interval."""
        if not self.is_integer:
            value = float(f"{value:.{_DIGITS}g}")
        return min(max(value, self.low), self.high)

    def ends(self) -> Sequence[float]:
        """The values that a config must accept for it to accept all."""
        return (self.low, self.high)

    def as_data(self) -> Any:
        """The interval as a sweep file writes it."""
        return {"low": self.low, "high": self.high, "log": self.log}


Values = Choices | Interval
Space = Mapping[str, Values]


def read_space(given: Any, where: str) -> dict[str, Values]:
    """Reads a space and checks each value against the type of its field.

    Args:
      given: the plain data.
      where: its source, for messages.

    Raises:
      UserError: an unknown field (the nearest is named), a value of another type than its field's,
        or an interval without numbers between its ends.
    """
    if not isinstance(given, Mapping) or not given:
        raise UserError(f"{where}: space is {short_repr(given)}; give a dict of fields")
    return {name: _read_values(name, values, where) for name, values in given.items()}


def _read_values(name: Any, data: Any, where: str) -> Values:
    if isinstance(data, Mapping):
        return _read_interval(name, data, where)
    if not isinstance(data, list | tuple) or not data:
        raise UserError(
            f"{where}: space of config.{name} is {short_repr(data)}; give a list of values, or "
            "{'low': ..., 'high': ...}"
        )
    values = tuple(parsed({name: value}, where)[name] for value in data)
    if len(set(values)) < len(values):
        raise UserError(f"{where}: space of config.{name} has a value twice: {short_repr(data)}")
    return Choices(values)


def _read_interval(name: Any, data: Mapping[Any, Any], where: str) -> Interval:
    place = f"{where}: space of config.{name}"
    keys = [field.name for field in dataclasses.fields(Interval)]
    for key in data:
        if key not in keys:
            hint = suggest(str(key), keys) or f"; it has {', '.join(keys)}"
            raise UserError(f"{place}: an interval has no {key!r}{hint}")
    for key in ("low", "high"):
        if key not in data:
            raise UserError(f"{place}: {key!r} is missing")
    ends = {key: parsed({name: data[key]}, where)[name] for key in ("low", "high")}
    try:
        return Interval(**{**data, **ends})
    except ValueError as error:
        raise UserError(f"{place}: {error}") from error


def space_of(data: Mapping[str, Any]) -> dict[str, Values]:
    """The space that `as_data` has written; ValueError or TypeError if it is damaged."""
    return {
        name: Interval(**values) if isinstance(values, Mapping) else Choices(tuple(values))
        for name, values in data.items()
    }


def grid_size(space: Space) -> int | None:
    """Number of combinations; None if there is an interval of real numbers."""
    sizes = [values.size for values in space.values()]
    return None if None in sizes else math.prod(size for size in sizes if size)


def grid_point(space: Space, number: int) -> dict[str, Any]:
    """A combination of values by its number; the last field changes fastest."""
    point = {}
    for name, values in reversed(list(space.items())):
        assert values.size is not None
        number, index = divmod(number, values.size)
        point[name] = values.nth(index)
    return {name: point[name] for name in space}


def random_point(space: Space, seed: int, number: int) -> dict[str, Any]:
    """Values drawn for a trial, a function of the arguments alone.

    Combinations of a small grid are drawn without replacement. Python guarantees that
    `Random(text).random()` stays the same in later versions.
    """
    size = grid_size(space)
    if size is not None and size <= _SMALL_GRID:
        order = sorted(range(size), key=lambda index: Random(f"{seed} {index}").random())
        return grid_point(space, order[number % size])
    quantiles = {name: Random(f"{seed} {number} {name}").random() for name in space}
    return {name: values.at(quantiles[name]) for name, values in space.items()}
