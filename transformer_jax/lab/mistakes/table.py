# SPDX-License-Identifier: Apache-2.0
"""Mistakes of those who write a Transformer, by name, read from table.toml."""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A row of the table.

    Attributes:
      about: part of the model whose reference it makes wrong.
      name: identifies it.
      title: the mistake in words.
      looks: what is seen in training or at test time.
      change: the remedy.
      source: a paper, tutorial or thread that has the right form, or warns.
      wrong: options of the reference; several are variants. Without any, a property of the outputs
        shows the mistake.
    """

    about: str
    name: str
    title: str
    looks: str
    change: str
    source: str
    wrong: Sequence[Mapping[str, Any]]


def read_table() -> dict[str, Mistake]:
    """All mistakes by name, in the order of the file."""
    parts = tomllib.loads(Path(__file__).with_name("table.toml").read_text(encoding="utf-8"))
    return {
        name: Mistake(about, name, *row)
        for about, rows in parts.items()
        for name, row in rows.items()
    }


MISTAKES = read_table()
