# SPDX-License-Identifier: Apache-2.0
"""Definition of a sweep: a config, its rows, seeds and metrics, as a sweep file states them.

A sweep file is Python with a docstring that asks a question and a `get_sweep()` that returns a
dict with the fields of `Sweep`.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import UserError
from transformer_jax.runs.config import failing_as, load_config, run_file
from transformer_jax.runs.workdir import SWEEP, TABLE
from transformer_jax.suggestions import suggest
from transformer_jax.summary import Summarized
from transformer_jax.sweeps.shared_folder import folder_name

_LONGEST_NAME = 200
"""Most bytes of the name of a row; its folder has that name, and file systems allow 255 bytes."""

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

    Raises:
      ValueError: there is no row or no seed, or a field has the wrong type.
    """

    config: str
    rows: Overrides | Callable[[ConfigDict], Overrides]
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

    def summary(self) -> Mapping[str, Any]:
        """The config, the number of seeds, and the overrides of each row."""
        rows = {"rows": "of the base config"} if callable(self.rows) else self.rows
        return {"config": self.config, "base": self.base, "seeds": self.seeds, **rows}

    def configs(self, overrides: Mapping[str, Any], chosen: str = "") -> dict[str, ConfigDict]:
        """The config of each row. A row's own overrides replace `overrides`, which replace `base`.

        Args:
          overrides: of all rows.
          chosen: a regular expression; rows whose name does not contain a match are left out.

        Raises:
          UserError: a config is invalid (the row is named), no row is chosen, two rows would have
            the same folder, or a row the name of a table.
        """
        rows = self.rows
        if callable(rows):
            base = load_config(self.config, {**self.base, **overrides})
            with failing_as("rows of the sweep"):
                rows = rows(base)
                _check_overrides("rows", rows)
        if len({folder_name(name) for name in rows}) < len(rows):
            raise UserError("two names of rows differ only in punctuation")
        for name in rows:
            if folder_name(name).lower().startswith((f"{TABLE}.", SWEEP.mark)):
                raise UserError(f"row {name!r}: the sweep's own files have this name; change it")
            if len(folder_name(name).encode()) > _LONGEST_NAME:
                raise UserError(f"row {name!r}: the name has more than {_LONGEST_NAME} bytes")
        rows = {name: own for name, own in rows.items() if re.search(chosen, name)}
        if not rows:
            raise UserError(f"--rows={chosen} matches no name of a row")
        configs = {}
        for name, own in rows.items():
            try:
                configs[name] = load_config(self.config, {**self.base, **overrides, **own})
            except UserError as error:
                raise UserError(f"row {name!r}: {error}") from error
        return configs


def load_sweep(path: str | Path, **changes: Any) -> Sweep:
    """Reads a sweep file; `changes` replace its fields.

    Raises:
      UserError: there is no such file, it fails or calls exit(), or its fields are invalid.
    """
    given = run_file(path, "sweep", "get_sweep", dict)
    known = [field.name for field in dataclasses.fields(Sweep)]
    for name in given:
        if name not in known:
            hint = suggest(str(name), known) or f"; the fields are {', '.join(known)}"
            raise UserError(f"sweep file {path}: there is no field {name}{hint}")
    try:
        return Sweep(**{**given, **changes})
    except (TypeError, ValueError) as error:
        raise UserError(f"sweep file {path}: {error}") from error


def _check_overrides(field: str, given: Any) -> None:
    """Raises ValueError unless `given` is {name: {"section.field": value}}."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{field} is {given!r}, not a dict of names and their overrides")
    for name, own in given.items():
        if not isinstance(name, str) or not folder_name(name).strip("."):
            raise ValueError(f"{field} has the name {name!r}; write a text that can name a folder")
        if not isinstance(own, Mapping):
            raise ValueError(f"{field}: {name!r} is {own!r}, not a dict of overrides")
