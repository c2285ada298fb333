"""Sweep files: experiments as data.

A sweep file is Python with a docstring that asks a question and a `get_sweep()` that returns a
dict with the fields of `Sweep`.
"""

import dataclasses
import difflib
import re
import runpy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import UserError
from transformer_jax.runs.config import load_config

Rows = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """An experiment as data.

    Attributes:
      config: the config file that all rows share.
      rows: {name: {"section.field": value}}; the name is the row's in the table. Or a function from
        the base config to these, for rows defined relative to the base (half the heads, ...).
      base: overrides of all rows.
      seeds: of each row.
      metrics: of the validation split, by their names in metrics.jsonl; none: the loss, and what
        chooses the best checkpoint.
      also: {name: {"section.field": value}}: further losses of the validation split, by the trained
        model under another config; None for a row whose model cannot be used so.

    Raises:
      ValueError: there is no row or no seed.
    """

    config: str
    rows: Rows | Callable[[ConfigDict], Rows]
    base: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seeds: int = 3
    metrics: Sequence[str] = ()
    also: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seeds < 1 or not self.rows:
            raise ValueError("a sweep has at least one row and one seed")

    def configs(self, overrides: Mapping[str, Any], chosen: str = "") -> dict[str, ConfigDict]:
        """The config of each row; `overrides` go over `base`, the row's own go over both.

        Args:
          overrides: of all rows.
          chosen: a regular expression; only rows in whose name it is found are taken.

        Raises:
          UserError: a config cannot be used (the row is named), no row is chosen, or two names of
            rows would have one folder.
        """
        rows = self.rows
        if callable(rows):
            rows = rows(load_config(self.config, {**self.base, **overrides}))
        if len({folder_name(name) for name in rows}) < len(rows):
            raise UserError("two names of rows differ in nothing but punctuation")
        rows = {name: own for name, own in rows.items() if re.search(chosen, name)}
        if not rows:
            raise UserError(f"--rows={chosen} is found in no name of a row")
        found = {}
        for name, own in rows.items():
            try:
                found[name] = load_config(self.config, {**self.base, **overrides, **own})
            except UserError as error:
                raise UserError(f"row {name!r}: {error}") from error
        return found


def load_sweep(path: str | Path, **changes: Any) -> Sweep:
    """Reads a sweep file; `changes` replace its fields.

    Raises:
      UserError: no such file, it fails, or its fields cannot be used.
    """
    if not Path(path).is_file():
        raise UserError(f"there is no sweep file {path}; see experiments/ for what there is")
    try:
        given = runpy.run_path(str(path))["get_sweep"]()
    except KeyError as error:
        raise UserError(f"sweep file {path} defines no get_sweep()") from error
    except Exception as error:
        raise UserError(f"sweep file {path} fails: {type(error).__name__}: {error}") from error
    known = [field.name for field in dataclasses.fields(Sweep)]
    for name in given:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
            raise UserError(f"sweep file {path}: there is no field {name}; did you mean {nearest}?")
    try:
        return Sweep(**{**given, **changes})
    except (TypeError, ValueError) as error:
        raise UserError(f"sweep file {path}: {error}") from error


def folder_name(row: str) -> str:
    """The folder of a row in the workdir of its sweep."""
    return re.sub(r"[^\w.-]+", "_", row)
