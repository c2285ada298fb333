# SPDX-License-Identifier: Apache-2.0
"""Training of the rows of a sweep, by themselves or in one program, and their measurements."""

import contextlib
import dataclasses
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
from transformer_jax.lab.sweeps.definition import Sweep
from transformer_jax.lab.sweeps.programs import (
    describe_group,
    has_joint_checkpoint,
    has_own_checkpoint,
    joint_folder,
    restart_abandoned,
)
from transformer_jax.lab.sweeps.results import (
    asked_of,
    encoded_result,
    is_complete,
    joined,
    last_validation,
    saved_row,
    seed_folders,
)
from transformer_jax.lab.sweeps.tables import Row
from transformer_jax.parallel.sharding import mesh_for_inference
from transformer_jax.runs import build
from transformer_jax.runs.replica_numbers import apart_reason
from transformer_jax.runs.run import Run
from transformer_jax.runs.seeds import seed_configs, train_replicas
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.train import train
from transformer_jax.runs.user_modules import Modules
from transformer_jax.runs.workdir import MARK, RESULT, SECONDS, read_metrics, workdir_within
from transformer_jax.runtime.files import read_regular, write_atomic

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

    Attributes:
      folder: of the row.
      trial: of a search, whose row it is; None: it trains in full.
      asked: identity of the row's result.
      saved: the row with its finished seeds, and the metrics that the sweep asks for now.
      configs: settings of the seeds to train, {"seed_N": settings}.
      place: folder of these seeds.
    """

    sweep: Sweep
    name: str
    folder: Path
    trial: TrialToTrain | None
    asked: Mapping[str, Any]
    saved: Row | None
    configs: Mapping[str, Settings]
    place: Path

    @property
    def is_trained(self) -> bool:
        """Returns True if all seeds are."""
        return self.saved is not None and not self.configs

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
            asked = {**self.asked, "seeds": self.saved.seeds}  # it may have more than asked for
            write_atomic(path, encoded_result(self.saved, asked))
        return self.saved.first_seeds(self.sweep.seeds)


def _row_to_train(
    sweep: Sweep, name: str, settings: Settings, folder: Path, trial: TrialToTrain | None = None
) -> _RowToTrain:
    """Reads a row's folder: its finished seeds, and what is left to train."""
    asked = asked_of(sweep, settings, trial.until if trial else None)
    saved = saved_row(folder / RESULT, name, asked)
    if saved and not is_complete(saved, sweep):
        saved = _with_recorded(saved, sweep, settings, folder)
    num_finished = saved.seeds if saved else 0
    configs = dict(islice(seed_configs(settings, sweep.seeds).items(), num_finished, None))
    place = folder
    if saved and len(configs) > 1:
        # Seeds that train together share a checkpoint, and the folder may have that of others.
        place = workdir_within(folder, f"from_{num_finished}")
        place.mkdir(exist_ok=True)
    return _RowToTrain(sweep, name, folder, trial, asked, saved, configs, place)


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
      folder: of the row.
      at_once: most seeds to train in one program.
      trial: of a search, whose row it is.
    """
    row = _row_to_train(sweep, name, settings, folder, trial)
    if row.is_trained:
        return row.save_recorded()
    reason = apart_reason(settings)
    if reason:
        if at_once > 1 and len(row.configs) > 1:
            logger.info("%s: seeds are trained one after another: %s", name, reason)
        at_once = 1
    until = trial.until if trial else None
    with _timer(row.place / SECONDS) as seconds:
        runs = dict(_train_seeds(row.configs, row.place, at_once, modules, until))
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
        rows = [_row_to_train(sweep, name, configs[name], folders[name]) for name in configs]
        rows = [row for row in rows if not row.is_trained]
        places = {row.name: row.place for row in rows}
        if rows and not has_joint_checkpoint(joint_folder(places)):
            rows = [row for row in rows if not _has_begun(row)]
        if len(rows) > 1:
            try:
                _train_program(rows, modules)
            except NoRoomError as error:
                logger.warning("%s; the rows are trained one after another", error)
    for name, settings in configs.items():  # those that were trained together are only read
        train_row(sweep, name, settings, folders[name], at_once, modules)


def _has_begun(row: _RowToTrain) -> bool:
    begun = (has_own_checkpoint(row.place, seed) for seed in row.configs)
    return has_joint_checkpoint(row.place) or any(begun)


def _train_program(rows: Sequence[_RowToTrain], modules: Modules) -> None:
    """Trains all seeds of rows in one program, and writes the rows' results."""
    configs = {}
    folders = {}
    for row in rows:
        for seed, settings in row.configs.items():
            configs[f"{row.name}/{seed}"] = settings
            folders[f"{row.name}/{seed}"] = workdir_within(row.place, seed)
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
        names = [f"{row.name}/{seed}" for seed in row.configs]
        row.save({folders[name]: runs[name] for name in names}, len(configs), share)


def _with_recorded(row: Row, sweep: Sweep, settings: Settings, folder: Path) -> Row:
    """A finished row with the metrics that the sweep asks for now, from the records of its seeds.

    They are None for seeds whose runs are no longer there.
    """
    folders = seed_folders(folder)
    workdirs = [folders.get(seed) for seed in seed_configs(settings, row.seeds)]
    records = [last_validation(read_metrics(path)) if path else None for path in workdirs]
    metrics = dict(row.metrics)
    for name in sweep.metrics:
        if name not in metrics:
            metrics[name] = [None if r is None else _metric(r, name) for r in records]
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
        # The runs are beside the file, or in group_N beside it.
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
        # Seeds that train together share a checkpoint, in their folder.
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
    # A program that trained this row with others leaves a checkpoint of each seed.
    are_apart = all(has_own_checkpoint(folder, seed) for seed in configs)
    are_apart &= not has_joint_checkpoint(folder)
    if len(configs) > 1 and not are_apart:
        return train_replicas(configs, folder, modules, until)
    runs = {}
    for seed, settings in configs.items():
        workdir = workdir_within(folder, seed)
        restart_abandoned(workdir)
        runs[seed] = train(settings, workdir, modules, until=until)
    return runs


def _measure(sweep: Sweep, runs: Mapping[Path, Run | None], at_once: int) -> dict[str, Any]:
    """Fields of a `Row` except name and seconds."""
    trained = [run for run in runs.values() if run is not None]
    names = list(sweep.metrics)
    if not names:
        criteria = [run.task.best_by.removeprefix("-") for run in trained[:1]]
        names = list(dict.fromkeys(["loss", *criteria]))
    records = [read_metrics(path) for path in runs]
    # The last validation of a seed that diverged was before that: it is no measure of the seed.
    validations = [
        {} if run is None else last_validation(of_run)
        for run, of_run in zip(runs.values(), records, strict=True)
    ]
    metrics = {name: [_metric(record, name) for record in validations] for name in names}
    for name, changes in sweep.also.items():
        metrics[name] = [_loss_with(run, changes) if run else None for run in runs.values()]
    speeds = [r["tokens_per_s"] for of_run in records for r in of_run if r["split"] == "train"]
    params = trained[0].params if trained else {}
    return {
        "metrics": metrics,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "tokens_per_s": statistics.median(speeds) * at_once if speeds else 0.0,
    }


def _metric(record: Mapping[str, Any], name: str) -> float | None:
    """A metric of a record, or None; NaN if it was not finite or the record is empty."""
    if not record:
        return math.nan
    value = record.get(name)
    return math.nan if value is None and name in record else value  # NaN is null in a file


def _loss_with(run: Run, changes: Mapping[str, Any]) -> float | None:
    """Validation loss of a run under other settings; None if its model does not allow them."""
    try:
        run = run.with_config(changes)
    except UserError as error:
        logger.info("%s: %s", ", ".join(f"{k}={v}" for k, v in changes.items()), error)
        return None
    settings = run.settings
    examples = open_split(settings.data, "valid")
    mesh = mesh_for_inference(settings.parallel)
    evaluator = build.build_evaluator(settings, run.task, examples, settings.decode, mesh)
    return float(evaluator.loss_metrics(run.params, run.frozen)["loss"])
