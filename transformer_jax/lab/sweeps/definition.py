# SPDX-License-Identifier: Apache-2.0
"""Definition of a sweep: a config, its rows, seeds and metrics, as a sweep file states them.

A sweep file is Python with a docstring that asks a question and a `get_sweep()` that returns a
dict with the fields of `Sweep`.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import UserError, user_errors
from transformer_jax.lab.sweeps.shared_folder import folder_name
from transformer_jax.runs.config import load_config, nested, resolve_file
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.user_modules import failing_as, run_file
from transformer_jax.suggestions import suggest
from transformer_jax.summary import Summarized

METHODS = ("grid", "random", "optuna")
"""Methods of a search."""

type Overrides = Mapping[str, Mapping[str, Any]]
"""{name: {"section.field": value}}: the overrides of each row."""


@dataclasses.dataclass(frozen=True, repr=False)
class Sweep(Summarized):
    """Definition of a sweep.

    Attributes:
      config: path of the config file that all rows share.
      rows: name of a row -> its overrides. Or a function from the base config to these, for rows
        relative to the base (half the heads, ...).
      base: overrides of all rows.
      seeds: number of seeds of each row.
      metrics: validation metrics, by their names in metrics.jsonl. Empty: the loss, and the metric
        that chooses the best checkpoint.
      also: {name: {"section.field": value}}: further columns, each with the validation loss of the
        trained model under another config; None for a row whose model does not allow it.
      space: in place of rows, the values that a search tries (`sweeps.search`).
      search: method of the search, one of `METHODS`.
      search_seed: seed of the method.
      halving: {"first": steps, "factor": 3}: of the trials that have trained `first` steps, only
        the best 1/factor continue (`sweeps.study`). Empty: all train in full.
      goal: metric that decides, with "-" before it if lower is better. Empty: the one that chooses
        the best checkpoint.

    Raises:
      ValueError: there is no row or no seed, or a field has the wrong type.
    """

    config: str
    rows: Overrides | Callable[[ConfigDict], Overrides] = dataclasses.field(default_factory=dict)
    base: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seeds: int = 3
    metrics: Sequence[str] = ()
    also: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    space: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    search: str = ""
    trials: int | None = None
    search_seed: int = 0
    halving: Mapping[str, int] = dataclasses.field(default_factory=dict)
    goal: str = ""

    def __post_init__(self) -> None:
        integers = [("seeds", self.seeds, 1), ("search_seed", self.search_seed, 0)]
        if self.trials is not None:
            integers.append(("trials", self.trials, 1))
        for name, value in self.halving.items():
            integers.append((f"halving: {name}", value, 2 if name == "factor" else 1))
        for name, value, smallest in integers:
            if type(value) is not int or value < smallest:
                raise ValueError(f"{name} is {value!r}; it is an integer of at least {smallest}")
        if isinstance(self.metrics, str):
            raise ValueError(f"metrics is {self.metrics!r}; give a list of names")
        _check_overrides("also", self.also)
        if not callable(self.rows):
            _check_overrides("rows", self.rows)
        self._check_search()

    def _check_search(self) -> None:
        """Raises ValueError unless there are either rows, or a space with what a search needs."""
        if not self.space:
            if not (self.rows or callable(self.rows)):
                raise ValueError("a sweep has at least one row, or a space to search")
            for name in ("search", "trials", "search_seed", "halving", "goal"):
                if getattr(self, name):
                    raise ValueError(f"{name} is set, but there is no space to search")
            return
        if self.rows:
            raise ValueError("a sweep has either rows or a space; drop one of them")
        if self.search not in METHODS:
            raise ValueError(f"search is {self.search!r}; it must be one of {', '.join(METHODS)}")
        if self.trials is None and self.search != "grid":
            raise ValueError("trials is missing: the number of trials of the search")
        if self.halving and not {"first"} <= set(self.halving) <= {"first", "factor"}:
            raise ValueError(f"halving is {self.halving!r}; write {{'first': steps, 'factor': 3}}")

    def summary(self) -> Mapping[str, Any]:
        """The config, the number of seeds, and the overrides of each row."""
        rows = {"rows": "of the base config"} if callable(self.rows) else self.rows or self.space
        return {"config": self.config, "base": self.base, "seeds": self.seeds, **rows}

    def with_base(self, overrides: Mapping[str, Any] | None) -> "Sweep":
        """The sweep with further overrides of all rows; those of a row itself come first."""
        return dataclasses.replace(self, base={**self.base, **(overrides or {})})

    def configs(self, chosen: str = "") -> dict[str, Settings]:
        """The settings of each row.

        Args:
          chosen: a regular expression; rows whose name does not contain a match are left out.

        Raises:
          UserError: a config is invalid (the row is named), no row is chosen, two rows would have
            the same folder, or the sweep is a search.
        """
        if self.space:
            raise UserError("this sweep is a search, whose trials are not known beforehand")
        rows = self.rows
        if callable(rows):
            base = load_config(self.config, self.base)
            with failing_as("rows of the sweep"):
                rows = rows(base)
                _check_overrides("rows", rows)
        # All rows are checked, not only the chosen ones, which share the folder with the others.
        if len({folder_name(name) for name in rows}) < len(rows):
            raise UserError("two names of rows differ only in punctuation")
        configs = {}
        for name in choose(rows, chosen):
            with user_errors(f"row {name!r}", kinds=UserError):
                configs[name] = resolve_file(self.config, {**self.base, **rows[name]})
        return configs

    def asked(
        self, settings: Settings, until: int | None = None, data: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Identity of the result of a row with these settings, as JSON; `until` and `data` are as
        of `RowSpec`."""
        also = {column: dict(changes) for column, changes in self.also.items()}
        steps = {} if until is None else {"until": until}
        return {"config": nested(settings.values), "also": also, **steps, "data": dict(data or {})}


def choose(names: Iterable[str], chosen: str) -> list[str]:
    """The names of rows that contain a match of a regular expression; UserError if none does."""
    matching = [name for name in names if re.search(chosen, name)]
    if not matching:
        raise UserError(f"--rows={chosen} matches no name of a row")
    return matching


def load_sweep(path: str | Path, **changes: Any) -> Sweep:
    """Reads a sweep file; `changes` replace its fields. Errors as of `load_definition`."""
    return load_definition(path, "sweep", Sweep, **changes)


def load_definition[D](
    path: str | Path, kind: str, definition: Callable[..., D], **changes: Any
) -> D:
    """Reads a definition: a dataclass with the fields that a file's `get_KIND()` returns.

    Raises:
      UserError: there is no such file, it fails or calls exit(), or its fields are invalid.
    """
    fields = run_file(path, kind, f"get_{kind}", dict)
    names = inspect.signature(definition).parameters
    for name in fields:
        if name not in names:
            hint = suggest(str(name), names) or f"; the fields are {', '.join(names)}"
            raise UserError(f"{kind} file {path}: there is no field {name}{hint}")
    with user_errors(f"{kind} file {path}", kinds=(TypeError, ValueError)):
        return definition(**{**fields, **changes})


def _check_overrides(field: str, overrides: Any) -> None:
    """Raises ValueError unless `overrides` is {name: {"section.field": value}}."""
    if not isinstance(overrides, Mapping):
        raise ValueError(f"{field} is {overrides!r}, not a dict of names and their overrides")
    for name, of_row in overrides.items():
        if not isinstance(name, str) or not folder_name(name).strip("."):
            raise ValueError(f"{field} has the name {name!r}; write a text that can name a folder")
        if not isinstance(of_row, Mapping):
            raise ValueError(f"{field}: {name!r} is {of_row!r}, not a dict of overrides")
