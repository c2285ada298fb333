# SPDX-License-Identifier: Apache-2.0
"""Numbers that may differ between replicas of one program: the table of their config fields."""

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.nn.traced_numbers import dropout_rate
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.user_modules import user_components


@dataclasses.dataclass(frozen=True)
class ReplicaNumber:
    """A number that enters the training step as a traced array (`nn.traced_numbers`).

    Attributes:
      trace: (number of a replica, number of the first) -> its arrays.
      read: path of the number in `Settings`; None: the field itself.
    """

    trace: Callable[[float, float], Any]
    read: str | None = None


def _itself(number: float, _: float) -> Any:
    return np.float32(number)


def _ratio(number: float, first: float) -> Any:
    return np.float32(number / first)


def _dropout(number: float, _: float) -> Any:
    return dropout_rate(number)


NUMBERS: Mapping[str, ReplicaNumber] = {
    "optimizer.learning_rate": ReplicaNumber(_ratio),  # every schedule is a multiple of it
    "optimizer.weight_decay": ReplicaNumber(_itself),
    "train.label_smoothing": ReplicaNumber(_itself),
    "model.dropout_rate": ReplicaNumber(_dropout),
    "model.embedding_dropout_rate": ReplicaNumber(_dropout, "model.embedding_dropout"),
    "model.attention_dropout_rate": ReplicaNumber(_dropout),
    "model.feed_forward_dropout_rate": ReplicaNumber(_dropout),
    "lora.dropout_rate": ReplicaNumber(_dropout),
}
"""The numbers by config field. A number that is 0 in one config alone makes another program."""


def _value(settings: Settings, field: str) -> float:
    value: float = operator.attrgetter(NUMBERS[field].read or field)(settings)
    return value


def traced_numbers(members: Sequence[Settings]) -> dict[str, Any]:
    """Arrays [R] of the numbers that differ between R replicas, by field."""
    stacked = {}
    for field, number in NUMBERS.items():
        values = [_value(member, field) for member in members]
        if len(set(values)) > 1:  # a number that all share stays a constant of the program
            traced = [number.trace(value, values[0]) for value in values]
            stacked[field] = jax.tree.map(lambda *arrays: np.stack(arrays), *traced)
    return stacked


def program_fields(settings: Settings) -> dict[str, Any]:
    """Fields that replicas of one program share, and which of `NUMBERS` are not 0.

    With a component of the user's own, which may read any number, all fields except the seed.
    """
    numbers = () if user_components(settings) else NUMBERS
    left_out = {*numbers, "seed"}
    shared = {name: value for name, value in settings.values.items() if name not in left_out}
    return shared | {field: _value(settings, field) != 0 for field in numbers}


def check_alike(members: Mapping[str, Settings]) -> None:
    """Raises UserError, which names a field, if the configs need more than one program."""
    first, *others = members
    expected = program_fields(members[first])
    for name in others:
        fields = program_fields(members[name])
        for field in expected | fields:
            if fields.get(field) != expected.get(field):
                raise UserError(
                    f"{name} differs from {first} in config.{field}: replicas may differ only in "
                    f"seed, {', '.join(NUMBERS)}, and there not from 0 (with components of your "
                    "own only in seed); train them one by one"
                )


def apart_reason(settings: Settings) -> str | None:
    """The option that forces seeds to be trained one after another; None if there is none."""
    if settings.eval.patience is not None:
        return "config.eval.patience ends each at another step"
    if settings.train.on_spike == "rewind":
        return "config.train.on_spike 'rewind' takes each back to a checkpoint of its own"
    if math.prod(settings.parallel.model_axes.values()) > 1 or jax.process_count() > 1:
        return "several devices or processes share each model"
    return None
