# SPDX-License-Identifier: Apache-2.0
"""Training of the rows of a sweep, by themselves or in one program, and their measurements."""

import contextlib
import dataclasses
import functools
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import batched, islice
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer_jax.data.sources import open_split
from transformer_jax.errors import DivergedError, NoRoomError, UserError
from transformer_jax.parallel.sharding import mesh_for_inference
from transformer_jax.runs import build
from transformer_jax.runs.replica_numbers import apart_reason
from transformer_jax.runs.run import Run
from transformer_jax.runs.seeds import seed_configs, train_replicas
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.train import train
from transformer_jax.runs.user_modules import Modules
from transformer_jax.runs.workdir import (
    MARK,
    RESULT,
    SECONDS,
    read_metrics,
    workdir_within,
)
from transformer_jax.runtime.files import read_regular, write_atomic
from transformer_jax.sweeps.definition import Sweep
from transformer_jax.sweeps.programs import (
    describe_group,
    has_joint_checkpoint,
    has_own_checkpoint,
    joint_folder,
    restart_abandoned,
)
from transformer_jax.sweeps.results import (
    asked_of,
    encoded_result,
    is_complete,
    joined,
    saved_row,
    seed_folders,
)
from transformer_jax.sweeps.tables import Row

logger = logging.getLogger(__name__)


class TrialToTrain(NamedTuple):
    """Part of a search's trial that a row trains.

    Attributes:
      values: of the trial, {"section.field": value}.
      until: the step to pause after.
    """

    values: Mapping[str, Any]
    until: int


@dataclasses.dataclass(frozen=True)
class _RowToTrain:
    """A row, and its seeds that are not trained.

    If it is finished with fewer seeds, only the others are trained: one beside them, several in a
    folder of their own, because those that train together share a checkpoint.

    Attributes:
      sweep: the sweep.
      name: name of the row.
      settings: its settings.
      folder: its folder.
      trial: of a search, of which it is the row; None: it trains in full.
    """

    sweep: Sweep
    name: str
    settings: Settings
    folder: Path
    trial: TrialToTrain | None = None

    @property
    def until(self) -> int | None:
        """The step to pause after; None: the last one."""
        return self.trial.until if self.trial else None

    @functools.cached_property
    def asked(self) -> dict[str, Any]:
        """Identity of the row's result."""
        return asked_of(self.sweep, self.settings, self.until)

    @functools.cached_property
    def saved(self) -> Row | None:
        """The row with the seeds that are finished, and the metrics that the sweep asks for now."""
        found = saved_row(self.folder / RESULT, self.name, self.asked)
        if found is None or is_complete(found, self.sweep):
            return found
        return _with_recorded(found, self.sweep, self.settings, self.folder)

    @property
    def is_trained(self) -> bool:
        """Returns True if all seeds are."""
        return self.saved is not None and not self.configs

    @functools.cached_property
    def configs(self) -> dict[str, Settings]:
        """Settings of the seeds to train, {"seed_N": config}."""
        first = self.saved.seeds if self.saved else 0
        return dict(islice(seed_configs(self.settings, self.sweep.seeds).items(), first, None))

    @functools.cached_property
    def place(self) -> Path:
        """Folder of the seeds to train."""
        if self.saved is None or len(self.configs) == 1:
            return self.folder
        place = workdir_within(self.folder, f"from_{self.saved.seeds}")
        place.mkdir(exist_ok=True)
        return place

    def save(self, runs: Mapping[Path, Run | None], at_once: int, seconds: float) -> Row:
        """Writes the result, measured on the runs of the seeds."""
        row = Row(self.name, **_measure(self.sweep, runs, at_once), seconds=seconds)
        if self.trial:
            row = dataclasses.replace(row, values=self.trial.values, steps=self.trial.until)
        if self.saved:
            row = joined(self.saved, row)
        write_atomic(self.folder / RESULT, encoded_result(row, self.asked))
        return row

    def save_recorded(self) -> Row:
        """Writes the result of a row whose seeds are all trained, if it lacked a metric."""
        assert self.saved is not None
        path = self.folder / RESULT
        if self.saved != saved_row(path, self.name, self.asked):
            seeds = {"seeds": self.saved.seeds}
            write_atomic(path, encoded_result(self.saved, self.asked | seeds))
        return self.saved.first_seeds(self.sweep.seeds)


def train_row(
    sweep: Sweep,
    name: str,
    settings: Settings,
    folder: Path,
    at_once: int,
    modules: Modules,
    trial: TrialToTrain | None = None,
) -> Row:
    """Trains a row, or reads it from its folder if it is finished.

    Args:
      sweep: the sweep.
      name: name of the row.
      settings: its settings.
      folder: its folder.
      at_once: most seeds to train in one program.
      modules: the user's own.
      trial: of a search, of which it is the row.
    """
    row = _RowToTrain(sweep, name, settings, folder, trial)
    if row.is_trained:
        return row.save_recorded()
    if reason := apart_reason(settings):
        if at_once > 1 and len(row.configs) > 1:
            logger.info("%s: seeds are trained one after another: %s", name, reason)
        at_once = 1
    with _timer(row.place / SECONDS) as seconds:
        runs = dict(_train_seeds(row.configs, row.place, at_once, modules, row.until))
        return row.save(runs, min(at_once, len(row.configs)), seconds())


def train_rows(
    sweep: Sweep,
    configs: Mapping[str, Settings],
    folders: Mapping[str, Path],
    at_once: int,
    modules: Modules,
) -> None:
    """Trains rows in one program; those that began by themselves continue by themselves."""
    if len(configs) > 1:
        rows = [_RowToTrain(sweep, name, configs[name], folders[name]) for name in configs]
        rows = [row for row in rows if not row.is_trained]
        places = {row.name: row.place for row in rows}
        if rows and not has_joint_checkpoint(joint_folder(places)):
            rows = [row for row in rows if not _has_begun(row)]
        if len(rows) > 1:
            try:
                _train_program(rows, modules)
            except NoRoomError as error:
                logger.warning("%s; the rows are trained one after another", error)
    for name, settings in configs.items():
        train_row(sweep, name, settings, folders[name], at_once, modules)


def _has_begun(row: _RowToTrain) -> bool:
    begun = (has_own_checkpoint(row.place, seed) for seed in row.configs)
    return has_joint_checkpoint(row.place) or any(begun)


def _train_program(rows: Sequence[_RowToTrain], modules: Modules) -> None:
    """Trains all seeds of rows in one program, and writes the rows' results."""
    configs = {f"{row.name}/{seed}": own for row in rows for seed, own in row.configs.items()}
    folders = {
        f"{row.name}/{seed}": workdir_within(row.place, seed)
        for row in rows
        for seed in row.configs
    }
    joint = joint_folder({row.name: row.place for row in rows})
    joint.mkdir(exist_ok=True)
    logger.info("%s", describe_group([row.name for row in rows], len(configs)))
    runs: dict[str, Run | None] = dict.fromkeys(configs)
    with _timer(joint / SECONDS) as seconds:
        try:
            runs |= train_replicas(configs, joint, modules, folders=folders)
        except DivergedError as error:
            logger.warning("%s", error)
        share = seconds() / len(rows)
    for row in rows:
        own = {folders[f"{row.name}/{seed}"]: runs[f"{row.name}/{seed}"] for seed in row.configs}
        row.save(own, len(configs), share)


def _with_recorded(row: Row, sweep: Sweep, settings: Settings, folder: Path) -> Row:
    """A finished row with the metrics that the sweep asks for now, from the records of its seeds.

    They are None for seeds whose runs are no longer there.
    """
    folders = seed_folders(folder)
    runs = [folders.get(seed) for seed in seed_configs(settings, row.seeds)]
    valid = [_last_record(read_metrics(run), "valid") if run else None for run in runs]
    metrics = dict(row.metrics)
    for name in sweep.metrics:
        if name not in metrics:
            metrics[name] = [None if one is None else _metric(one, name) for one in valid]
    return dataclasses.replace(row, metrics=metrics)


@contextlib.contextmanager
def _timer(path: Path) -> Iterator[Callable[[], float]]:
    """Yields a function that returns the seconds spent so far, including earlier starts.

    They are saved to a file after a run has begun beside it.
    """
    try:
        before = float(read_regular(path))
    except (OSError, ValueError):
        before = 0.0
    start = time.perf_counter()

    def seconds() -> float:
        return before + time.perf_counter() - start

    try:
        yield seconds
    finally:
        if any(any(path.parent.glob(f"{runs}/{MARK}")) for runs in ("*", "*/*")):
            write_atomic(path, f"{seconds():.1f}\n")


def _train_seeds(
    configs: Mapping[str, Settings],
    folder: Path,
    at_once: int,
    modules: Modules,
    until: int | None,
) -> Iterator[tuple[Path, Run | None]]:
    """Yields the workdir and the run of each config; None for a run that diverged."""
    groups = list(batched(configs.items(), at_once))
    for number, group in enumerate(map(dict, groups)):
        place = folder if len(groups) == 1 else workdir_within(folder, f"group_{number}")
        runs: dict[str, Run | None] = dict.fromkeys(group)
        try:
            runs |= _train_group(group, place, modules, until)
        except DivergedError as error:
            logger.warning("%s", error)
        for name, run in runs.items():
            yield place / name, run


def _train_group(
    configs: Mapping[str, Settings], folder: Path, modules: Modules, until: int | None
) -> dict[str, Run]:
    # As another program leaves them, which trained this row with others.
    apart = all(has_own_checkpoint(folder, seed) for seed in configs)
    apart &= not has_joint_checkpoint(folder)
    if len(configs) > 1 and not apart:
        return train_replicas(configs, folder, modules, until)
    runs = {}
    for name, config in configs.items():
        own = workdir_within(folder, name)
        restart_abandoned(own)
        runs[name] = train(config, own, modules, until=until)
    return runs


def _measure(sweep: Sweep, runs: Mapping[Path, Run | None], at_once: int) -> dict[str, Any]:
    """Fields of a `Row` except name and seconds."""
    trained = [run for run in runs.values() if run is not None]
    names = list(sweep.metrics or _default_metrics(trained))
    records = [read_metrics(path) for path in runs]
    valid = [
        {} if run is None else _last_record(of_run, "valid")  # before it diverged, all was well
        for run, of_run in zip(runs.values(), records, strict=True)
    ]
    metrics = {name: [_metric(record, name) for record in valid] for name in names}
    for name, changes in sweep.also.items():
        metrics[name] = [_loss_with(run, changes) if run else None for run in runs.values()]
    speeds = [r["tokens_per_s"] for of_run in records for r in of_run if r["split"] == "train"]
    params = trained[0].params if trained else {}
    return {
        "metrics": metrics,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "tokens_per_s": statistics.median(speeds) * at_once if speeds else 0.0,
    }


def _default_metrics(runs: Sequence[Run]) -> list[str]:
    criteria = [run.task.best_by.removeprefix("-") for run in runs[:1]]
    return list(dict.fromkeys(["loss", *criteria]))


def _last_record(records: Sequence[Mapping[str, Any]], split: str) -> Mapping[str, Any]:
    return next((record for record in reversed(records) if record["split"] == split), {})


def _metric(record: Mapping[str, Any], name: str) -> float | None:
    """A metric of a record, or None; NaN if it was not finite or the record is empty."""
    value = record.get(name)
    return math.nan if value is None and (name in record or not record) else value


def _loss_with(run: Run, changes: Mapping[str, Any]) -> float | None:
    """Validation loss of a run under other settings; None if its model does not allow them."""
    try:
        run = run.with_config(changes)
    except UserError as error:
        logger.info("%s: %s", ", ".join(f"{k}={v}" for k, v in changes.items()), error)
        return None
    settings = run.settings
    examples, mesh = open_split(settings.data, "valid"), mesh_for_inference(settings.parallel)
    evaluator = build.build_evaluator(settings, run.task, examples, settings.decode, mesh)
    return float(evaluator.loss_metrics(run.params, run.frozen)["loss"])
