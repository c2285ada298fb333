# SPDX-License-Identifier: Apache-2.0
"""Numbers of a config that replicas of one program do not share, such as dropout rates.

A training step that is traced once for all replicas reads them as traced arrays, by the name of
their field; other programs use the number of the config.
"""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

DropoutRate = tuple[Any, Any]
"""Threshold of the random uint32 of an element that is kept, and the factor of its value."""

LEARNING_RATE = "optimizer.learning_rate"
"""Field of a number that is relative to the learning rate of the schedule."""


@dataclasses.dataclass(frozen=True, eq=False)  # eq=False: hashable, as a key of jit's cache must be
class _Numbers:
    by_field: Mapping[str, Any]


_numbers = jax.make_user_context(None)


def use_traced_numbers(by_field: Mapping[str, Any] | None) -> contextlib.AbstractContextManager:
    """Context: inside, `traced_number` gives these arrays, {"section.field": array}."""
    return _numbers(_Numbers(by_field) if by_field else None)


def traced_number(field: str | None, number: Any) -> Any:
    """The array of a field "section.field" inside `use_traced_numbers`, otherwise its `number`.

    0 is always returned, because programs for 0 leave parts out: only replicas that all have 0, or
    all another number, are in one program.
    """
    numbers = _numbers.value
    if numbers is None or is_zero(number):
        return number
    return numbers.by_field.get(field, number)


def is_zero(number: Any) -> bool:
    """Returns True for the number 0 of a config; no traced number is 0 in any replica."""
    return isinstance(number, float | int) and number == 0


def dropout_rate(rate: float) -> DropoutRate:
    """Threshold and factor of a dropout rate below 1."""
    return np.uint32(min(round(rate * 2**32), 2**32 - 1)), np.float32(1 / (1 - rate))
