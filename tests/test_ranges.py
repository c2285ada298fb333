# SPDX-License-Identifier: Apache-2.0
"""Limits of fields: allowed values, and the message for others."""

import dataclasses
from functools import partial
from typing import Annotated

import numpy as np

from tests.refusals import assert_refused
from transformer_jax.ranges import DropoutRate, OneOf, PathPattern, Range, Size, check_fields


@dataclasses.dataclass(frozen=True)
class Config:
    width: Size = 8
    window: Size | None = None
    rate: DropoutRate = 0.0
    share: Annotated[float, Range(0, 1, "(]")] = 1.0
    engine: Annotated[str, OneOf("jit", "pmap")] = "jit"
    pattern: PathPattern | None = None
    note: str = ""

    def __post_init__(self) -> None:
        check_fields(self)


def test_values_within_the_limits_pass():
    Config(width=1, window=None, rate=0, share=1, note="any")
    Config(width=65_536, window=3, rate=np.float32(0.5), share=1e-9, engine="pmap")
    Config(width=np.int64(4), pattern="(query|value)/kernel$")


def test_the_message_has_field_value_and_limits():
    fields = {
        "width is 0; it must lie in [1, 65_536]": {"width": 0},
        "width is 1.0; it must be of type int": {"width": 1.0},
        "width is True; it must be of type int": {"width": True},
        "width is None; it must be of type int": {"width": None},
        "window is 1000000000; it must lie in [1, 65_536], or be none": {"window": 10**9},
        "rate is 1.0; it must lie in [0, 1)": {"rate": 1.0},
        "rate is -1e-09; it must lie in [0, 1)": {"rate": -1e-9},
        "rate is nan; it must lie in [0, 1)": {"rate": float("nan")},
        "share is 0.0; it must lie in (0, 1]": {"share": 0.0},
        "share is inf; it must lie in (0, 1]": {"share": float("inf")},
        "engine is 'jot', not one of jit, pmap": {"engine": "jot"},
        "pattern is '(a', not a regular expression: missing ), unterminated subpattern"
        " at position 0, or be none": {"pattern": "(a"},
    }
    assert_refused({message: partial(Config, **changes) for message, changes in fields.items()})
