"""Sweep files: experiments as data.

A sweep file is Python with a docstring that asks a question and a `get_sweep()` that returns a
dict with the fields of `Sweep`.
"""

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import UserError
from transformer_jax.runs.config import failing_as, load_config, run_file

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
      ValueError: there is no row or no seed, or a field is not of its type.
    """

    config: str
    rows: Rows | Callable[[ConfigDict], Rows]
    base: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seeds: int = 3
    metrics: Sequence[str] = ()
    also: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.config, str):
            raise ValueError(f"config is {self.config!r}, not the path of a config file")
        if type(self.seeds) is not int or self.seeds < 1:
            raise ValueError(f"seeds is {self.seeds!r}; a sweep has at least one seed")
        if isinstance(self.metrics, str) or not all(isinstance(name, str) for name in self.metrics):
            raise ValueError(f"metrics is {self.metrics!r}; give a list of names")
        if not isinstance(self.base, Mapping):
            raise ValueError(f"base is {self.base!r}, not a dict of overrides")
        _check_overrides("also", self.also)
        if not callable(self.rows):
            _check_overrides("rows", self.rows)
            if not self.rows:
                raise ValueError("a sweep has at least one row")

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
            base = load_config(self.config, {**self.base, **overrides})
            with failing_as("rows of the sweep"):
                rows = rows(base)
                _check_overrides("rows", rows)
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


def _check_overrides(field: str, given: Any) -> None:
    """Raises ValueError unless it is {name: {"section.field": value}}."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{field} is {given!r}, not a dict of names and their overrides")
    for name, own in given.items():
        if not isinstance(name, str) or not folder_name(name).strip("."):
            raise ValueError(f"{field} has the name {name!r}; write a text that can name a folder")
        if not isinstance(own, Mapping):
            raise ValueError(f"{field}: {name!r} is {own!r}, not a dict of overrides")


def load_sweep(path: str | Path, **changes: Any) -> Sweep:
    """Reads a sweep file; `changes` replace its fields.

    Raises:
      UserError: no such file, it fails or calls exit(), or its fields cannot be used.
    """
    given = run_file(path, "sweep", "get_sweep", dict)
    known = [field.name for field in dataclasses.fields(Sweep)]
    for name in given:
        if name not in known:
            nearest = difflib.get_close_matches(str(name), known, n=1, cutoff=0)[0]
            raise UserError(f"sweep file {path}: there is no field {name}; did you mean {nearest}?")
    try:
        return Sweep(**{**given, **changes})
    except (TypeError, ValueError) as error:
        raise UserError(f"sweep file {path}: {error}") from error


def folder_name(row: str) -> str:
    """The folder of a row in the workdir of its sweep."""
    return re.sub(r"[^\w.-]+", "_", row)
