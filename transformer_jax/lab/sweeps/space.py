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

_DIGITS = 4  # significant, of a number that is drawn; a command line stays readable
_SMALL_GRID = 10_000  # combinations, which are sorted for each trial

METHODS = ("grid", "random", "optuna")
"""Methods of a search."""


@dataclasses.dataclass(frozen=True)
class Choices:
    """A list of values."""

    values: tuple[Any, ...]

    def at(self, u: float) -> Any:
        """The value at a quantile `u` in [0, 1)."""
        return self.values[int(u * len(self.values))]

    def ends(self) -> Sequence[Any]:
        """The values that a config must accept for it to accept all."""
        return self.values


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
    def values(self) -> Sequence[int] | None:
        """The integers; None if they are real numbers."""
        return range(int(self.low), int(self.high) + 1) if self.is_integer else None

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


Values = Choices | Interval
Space = dict[str, Values]


def read_space(data: Any, where: str) -> Space:
    """Reads a space and checks each value against the type of its field.

    Args:
      data: the space as a sweep file writes it.
      where: its source, for messages.

    Raises:
      UserError: an unknown field (the nearest is named), a value of another type than its field's,
        or an interval without numbers between its ends.
    """
    if not isinstance(data, Mapping) or not data:
        raise UserError(f"{where}: space is {short_repr(data)}; give a dict of fields")
    return {name: _read_values(name, values, where) for name, values in data.items()}


def _read_values(name: Any, data: Any, where: str) -> Values:
    if isinstance(data, Mapping):
        return _read_interval(name, data, where)
    if not isinstance(data, list | tuple) or not data:
        raise UserError(
            f"{where}: space of config.{name} is {short_repr(data)}; give a list of values, or "
            "{'low': ..., 'high': ...}"
        )
    return Choices(tuple(parsed({name: value}, where)[name] for value in data))


def _read_interval(name: Any, data: Mapping[Any, Any], where: str) -> Interval:
    ends = {key: parsed({name: data[key]}, where)[name] for key in ("low", "high") if key in data}
    try:
        return Interval(**{**data, **ends})
    except (TypeError, ValueError) as error:
        message = f"{where}: space of config.{name}: {error}; an interval has low, high and log"
        raise UserError(message) from error


def grid_size(space: Space) -> int | None:
    """Number of combinations; None if there is an interval of real numbers."""
    size = 1
    for choices in space.values():
        if choices.values is None:
            return None
        size *= len(choices.values)
    return size


def grid_point(space: Space, number: int) -> dict[str, Any]:
    """A combination of values by its number; the last field changes fastest."""
    point = {}
    for name, choices in reversed(space.items()):
        assert choices.values is not None
        number, index = divmod(number, len(choices.values))
        point[name] = choices.values[index]
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
