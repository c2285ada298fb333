# SPDX-License-Identifier: Apache-2.0
"""Reproductions: the numbers of a paper's table or figure beside those of one's own runs.

A reproduction file is Python with a docstring and a `get_reproduction()` that returns a dict with
the fields of `Reproduction`. Reproducing trains the rows of its sweep at a scale, or computes
them, and decides the paper's statements about them (`evidence.statements`).
"""

import dataclasses
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.lab.evidence.reproduced import Reproduced, ReproducedRow, write_reproduced
from transformer_jax.lab.evidence.statements import (
    EQUAL,
    HIGHER,
    LOWER,
    Comparison,
    decide_statements,
)
from transformer_jax.lab.sweeps.definition import Sweep, load_sweep, read_fields
from transformer_jax.lab.sweeps.shared_folder import folder_name
from transformer_jax.lab.sweeps.sweep import run_sweep
from transformer_jax.lab.sweeps.tables import Row
from transformer_jax.runs.load import load
from transformer_jax.runs.run import Run
from transformer_jax.runs.shipped import find_file
from transformer_jax.runs.user_modules import Modules
from transformer_jax.runs.workdir import (
    REPRODUCTION,
    SWEEP,
    lock_workdir,
    open_for_writing,
    seed_workdirs,
)
from transformer_jax.runtime.files import parse_json, read_regular, write_atomic
from transformer_jax.suggestions import suggest
from transformer_jax.summary import Summarized

_EXPECTED = (LOWER, HIGHER, EQUAL)
_PLACES = ("data.dir", "data.cache_dir", "data.num_workers")


@dataclasses.dataclass(frozen=True, repr=False)
class Reproduction(Summarized):
    """A table or figure of a paper.

    Attributes:
      title: the table or figure, and the paper.
      published: row -> metric -> the paper's number; the first row is the base.
      statements: sentence of the paper -> comparisons that it makes, (row, base, metric, "lower",
        "higher" or "equal"); a fifth element is the metric of the base, if it is another one.
      sweep: sweep file whose rows are trained, in the order of `published`; empty with `compute`.
      paper_config: config with which the sweep has the paper's rows; empty if its rows have the
        same names with every config.
      scales: name -> config file and overrides, smaller than the paper's; the first is the default.
      measure: trained run -> further metrics.
      compute: row -> metric -> exact value, in place of training.
      curve: metrics to draw, one after the other, as a curve of each row.
      axes: titles of the axes of that picture.
      margin: share of the base's mean up to which a difference counts as nearly equal.
      notes: sentences that the report ends with.
      name, digest: of the file, set by `load_reproduction`.

    Raises:
      ValueError: a statement compares unknown rows, or a field has no meaning.
    """

    title: str
    published: Mapping[str, Mapping[str, float]]
    statements: Mapping[str, Sequence[Sequence[str]]]
    sweep: str = ""
    paper_config: str = ""
    scales: Mapping[str, tuple[str, Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    measure: Callable[[Run], Mapping[str, float]] | None = None
    compute: Callable[[], Mapping[str, Mapping[str, float]]] | None = None
    curve: Sequence[str] = ()
    axes: tuple[str, str] = ("", "")
    margin: float = 0.02
    notes: Sequence[str] = ()
    name: str = ""
    digest: str = ""

    def __post_init__(self) -> None:
        if not self.published:
            raise ValueError("published has no row")
        if bool(self.sweep) == (self.compute is not None):
            raise ValueError("a reproduction has either a sweep to train or compute")
        if self.sweep and not self.scales:
            raise ValueError("scales is empty; name a config and overrides")
        for comparison in itertools.chain(*self.comparisons.values()):
            for row in (comparison.row, comparison.base):
                if row not in self.published:
                    raise ValueError(f"a statement is about {row!r}{suggest(row, self.published)}")
            if comparison.expected not in _EXPECTED:
                raise ValueError(f"{comparison.expected!r} is none of {', '.join(_EXPECTED)}")

    @property
    def comparisons(self) -> dict[str, list[Comparison]]:
        """The statements with their comparisons."""
        return {
            text: [Comparison(*fields) for fields in comparisons]
            for text, comparisons in self.statements.items()
        }

    def summary(self) -> Mapping[str, Any]:
        """The title, what is done, and the statements."""
        done = f"sweep {self.sweep}" if self.sweep else "computed"
        return {"title": self.title, "rows": done, **dict.fromkeys(self.statements, "")}

    def sweep_at(self, scale: str, config: str, seeds: int | None) -> Sweep:
        """The sweep at a scale, or with another config in place of one.

        Raises:
          UserError: there is no such scale.
        """
        if scale and scale not in self.scales:
            hint = suggest(scale, self.scales) or f"; it has {', '.join(self.scales)}"
            raise UserError(f"{self.name} has no scale {scale}{hint}; or give a --config")
        overrides: Mapping[str, Any] = {}
        if not config:
            config, overrides = self.scales[scale or next(iter(self.scales))]
        sweep = load_sweep(self.sweep, config=config)
        base = {**sweep.base, **overrides}
        return dataclasses.replace(sweep, base=base, seeds=seeds or sweep.seeds)

    def row_names(self, sweep: Sweep, overrides: Mapping[str, Any]) -> dict[str, str]:
        """The sweep's own name of each of the paper's rows.

        Raises:
          UserError: the sweep has other rows than the paper's table, or another number of them.
        """
        ours = list(sweep.configs(overrides))
        paper = ours
        if self.paper_config:
            paper = list(load_sweep(self.sweep, config=self.paper_config).configs({}))
        if paper != list(self.published):
            raise UserError(f"{self.name}: the rows of sweep {self.sweep} are not the paper's rows")
        if len(ours) != len(paper):
            raise UserError(
                f"{self.name}: with this config the sweep has {len(ours)} rows and the paper "
                f"{len(paper)}; choose a config whose variants differ (3 layers, 4 heads or more)"
            )
        return dict(zip(paper, ours, strict=True))


def load_reproduction(path: str | Path) -> Reproduction:
    """Reads a reproduction file; a shipped one is named PAPER/ITEM.

    Raises:
      UserError: there is no such file, it fails, or its fields are invalid.
    """
    fields = read_fields(path, "reproduction", Reproduction)
    content = read_regular(find_file(path, "reproduction"))
    name = "/".join(Path(path).with_suffix("").parts[-2:])
    try:
        return Reproduction(**fields, name=name, digest=hashlib.sha256(content).hexdigest())
    except (TypeError, ValueError) as error:
        raise UserError(f"reproduction file {path}: {error}") from error


def reproduce(
    item: Reproduction,
    workdir: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    scale: str = "",
    config: str = "",
    seeds: int | None = None,
    chosen: str = "",
    modules: Modules = (),
    progress: bool = True,
) -> Reproduced:
    """Trains or computes the rows of a paper's table and decides its statements.

    Writes reproduction.json, .md and .csv, and of a figure .png, into the workdir.

    Args:
      item: the table or figure.
      workdir: for the runs; a reproduction that stopped is resumed. Not needed if nothing is
        trained.
      overrides: config fields of all rows, such as `data.dir`.
      scale: one of the item's scales; empty: the first.
      config: config file to use in place of a scale.
      seeds: number of seeds of each row; None: the sweep's.
      chosen: regular expression; only rows whose name has a match are trained.

    Raises:
      UserError: as `run_sweep`; or the workdir holds another reproduction.
    """
    start = time.perf_counter()
    overrides = overrides or {}
    fields = {name: value for name, value in overrides.items() if name not in _PLACES}
    asked = {"item": item.name, "scale": scale, "config": config, "overrides": fields}
    if item.compute is not None:
        if any(asked[name] for name in ("scale", "config", "overrides")):
            raise UserError(f"{item.name} trains nothing; leave scale, config and its fields out")
        computed = item.compute()
        rows = []
        for name, published in item.published.items():
            values = {metric: [value] for metric, value in computed.get(name, {}).items()}
            rows.append(ReproducedRow(name, "", published, values))
        reproduced = _decided(item, asked, rows, start)
        if workdir is not None:
            with open_for_writing(workdir) as handle, lock_workdir(handle.folder, SWEEP):
                _require_same(handle.folder, asked)
                write_reproduced(reproduced, handle.folder)
        return reproduced
    if workdir is None:
        raise UserError(f"{item.name} trains its rows; give a --workdir for them")
    sweep = item.sweep_at(scale, config, seeds)
    names = item.row_names(sweep, overrides)
    with open_for_writing(workdir) as handle:
        with lock_workdir(handle.folder, SWEEP):
            saved = _require_same(handle.folder, asked)
        trained = run_sweep(
            *(sweep, handle.folder, overrides), chosen=chosen, modules=modules, progress=progress
        )
        by_name = {row.name: row for row in trained}
        rows = [
            _measured(item, name, by_name[ours], handle.folder, modules, saved)
            if ours in by_name
            else ReproducedRow(name, ours, item.published[name], {})  # not `chosen`
            for name, ours in names.items()
        ]
        reproduced = _decided(item, asked, rows, start)
        write_reproduced(reproduced, handle.folder)
    return reproduced


def _decided(
    item: Reproduction, asked: Mapping[str, Any], rows: Sequence[ReproducedRow], start: float
) -> Reproduced:
    values: dict[str, dict[str, Sequence[float]]] = {
        row.name: {metric: row.finite(metric) for metric in row.values} for row in rows
    }
    is_exact = item.compute is not None
    if is_exact:  # a statement may compare with the paper's numbers
        for row in rows:
            for metric, number in row.published.items():
                values[row.name][f"published {metric}"] = [number]
    statements = decide_statements(item.comparisons, values, item.margin, exact=is_exact)
    return Reproduced(
        title=item.title,
        asked={**asked, "file": item.digest},
        rows=rows,
        statements=statements,
        curve=item.curve,
        axes=item.axes,
        notes=item.notes,
        seconds=round(time.perf_counter() - start, 1),
    )


def _require_same(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Reads what an earlier call has written into a folder; marks a new folder.

    Raises:
      UserError: the folder holds another reproduction, or one at another scale.
    """
    path = folder / f"{REPRODUCTION}.json"
    try:
        saved = parse_json(read_regular(path))
        before = saved["asked"]
        differing = [name for name in asked if before.get(name) != asked[name]]
    except FileNotFoundError:
        write_atomic(path, json.dumps({"asked": dict(asked), "rows": []}) + "\n")
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is damaged; remove it, and the runs are kept") from error
    if differing:
        name = differing[0]
        raise UserError(
            f"{folder} holds another reproduction: its {name} is {before.get(name)!r}, not "
            f"{asked[name]!r}; choose another --workdir"
        )
    return dict(saved)


def _measured(
    item: Reproduction,
    name: str,
    row: Row,
    folder: Path,
    modules: Modules,
    saved: Mapping[str, Any],
) -> ReproducedRow:
    """A trained row with its further metrics, which an earlier call may have measured."""
    values = {
        metric: [math.nan if value is None else float(value) for value in seeds]
        for metric, seeds in row.metrics.items()
    }
    if item.measure is not None:
        # Another version of the file may measure something else by the same name.
        saved = saved if saved.get("asked", {}).get("file") == item.digest else {}
        values |= _saved_values(saved, name, values) or _measure(item.measure, row, folder, modules)
    return ReproducedRow(name, row.name, item.published[name], values)


def _measure(
    measure: Callable[[Run], Mapping[str, float]], row: Row, folder: Path, modules: Modules
) -> dict[str, list[float]]:
    """Metrics of each seed of a row; a row with a seed that diverged has none."""
    if any(len(row.finite(metric)) < row.seeds for metric in row.metrics):
        return {}
    seeds = seed_workdirs(folder / folder_name(row.name))
    measured = [measure(load(seed, modules=modules)) for seed in seeds]
    return {metric: [float(values[metric]) for values in measured] for metric in measured[0]}


def _saved_values(
    saved: Mapping[str, Any], name: str, trained: Mapping[str, Sequence[float]]
) -> dict[str, list[float]]:
    """Values that an earlier call measured on the same trained seeds; empty if there are none."""
    for row in saved.get("rows", ()):
        values = row.get("values", {})
        if row.get("name") == name and trained.items() <= values.items():
            return dict(values)
    return {}
