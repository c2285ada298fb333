# SPDX-License-Identifier: Apache-2.0
"""Training of the rows of a sweep, and their measurements.

A row is its seeds, each with the workdir `seed_N` in the row's folder. Seeds of rows that differ
only in numbers train in one program.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import batched, islice
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.data.sources import open_split
from transformer_jax.errors import DivergedError, NoRoomError, UserError, user_errors
from transformer_jax.lab.sweeps import results
from transformer_jax.lab.sweeps.definition import Sweep
from transformer_jax.lab.sweeps.tables import Row
from transformer_jax.nn.layers import count_parameters
from transformer_jax.parallel.sharding import mesh_for_inference
from transformer_jax.runs import build
from transformer_jax.runs.provenance import data_digests
from transformer_jax.runs.run import Run
from transformer_jax.runs.seeds import apart_reason, program_fields, seed_configs, train_replicas
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.train import train
from transformer_jax.runs.user_modules import Modules, describe_module_error, failing_as
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    MARK,
    RESULT,
    SECONDS,
    TOGETHER,
    read_metrics,
    set_records_aside,
    workdir_within,
)
from transformer_jax.runtime.files import read_regular, write_atomic
from transformer_jax.scoring import METRICS
from transformer_jax.suggestions import suggest
from transformer_jax.tasks.losses import batch_shapes

AT_ONCE = 8
"""Most seeds of several rows in one program, unless the user sets it: memory grows with them."""

logger = logging.getLogger(__name__)


class RowSpec(NamedTuple):
    """A row of a sweep.

    Attributes:
      values: of a trial of a search, {"section.field": value}.
      until: of a trial of a search, the step after which it is measured; None: it trains in full.
      data: digests of its training and validation data; empty if they are not here.
    """

    name: str
    settings: Settings
    values: Mapping[str, Any] = {}
    until: int | None = None
    data: Mapping[str, str] = {}


class RowPlan(NamedTuple):
    """The part of a row that is left to train.

    Attributes:
      folder: of the row.
      asked: identity of its result.
      saved: the row with its finished seeds, and the metrics that the sweep asks for now.
      configs: settings of the seeds to train, {"seed_N": settings}.
    """

    spec: RowSpec
    folder: Path
    asked: Mapping[str, Any]
    saved: Row | None
    configs: Mapping[str, Settings]


def row_data(configs: Mapping[str, Settings]) -> dict[str, dict[str, str]]:
    """Digests of the training and validation data of each row; empty, with a warning, if they are
    not here: finished rows are then recognized by their configs alone."""
    try:
        return data_digests(configs)
    except UserError as error:
        logger.warning("finished rows are not compared with the data: %s", error)
        return {name: {} for name in configs}


def check_row(sweep: Sweep, name: str, settings: Settings) -> None:
    """Raises UserError if a row cannot train: before any row has, so that none trains in vain."""
    with user_errors(f"row {name!r}", kinds=UserError):
        seed_configs(settings, sweep.seeds)
        _check_metrics(sweep, settings)
        _check_model(settings)


def _check_model(settings: Settings) -> None:
    """Raises UserError if the model, or a user's component of it in training, fails on shapes."""
    task = build.build_untokenized_task(settings)
    rng = jax.random.key(0)
    batch = batch_shapes(task.lengths, build.batch_rows(settings, task))
    try:
        jax.eval_shape(task.loss, jax.eval_shape(task.init, rng), batch, rng, {})
    except Exception as error:
        line = describe_module_error(error)
        if line:
            raise UserError(line) from error
        # Not the user's code: batches of some tasks have further arrays, which the loss lacks here.


def _check_metrics(sweep: Sweep, settings: Settings) -> None:
    """Raises UserError if a sweep names a metric that the runs of a row will not have."""
    kind = build.task_kind(settings)
    if not kind.metrics:
        return
    names = set(kind.metrics)
    metric = settings.task.metric or kind.metric
    if metric:  # only its scores say what they are called
        with failing_as(f"task.metric {metric} fails on a text of one letter"):
            scores = METRICS.configured(metric, settings.task)(["a"], ["a"])
        names |= {name for name, value in scores.items() if not isinstance(value, str)}
    for name in sweep.metrics:
        if name not in names:
            hint = suggest(name, names) or f"; it has {', '.join(sorted(names))}"
            raise UserError(f"task {settings.task.name} has no metric {name!r}{hint}")


def plan_row(sweep: Sweep, spec: RowSpec, folder: Path) -> RowPlan:
    """Reads a row's folder: its finished seeds, and what is left to train."""
    asked = sweep.asked(spec.settings, spec.until, spec.data)
    saved = results.saved_row(folder / RESULT, spec.name, asked)
    if saved and not saved.is_complete(sweep.seeds, sweep.metrics):
        saved = _with_recorded(saved, sweep, spec.settings, folder)
    configs = seed_configs(spec.settings, sweep.seeds)
    left = dict(islice(configs.items(), saved.seeds if saved else 0, None))
    return RowPlan(spec, folder, asked, saved, left)


def group_rows(configs: Mapping[str, Settings], seeds: int, at_once: int) -> list[list[str]]:
    """Groups rows that one program trains, in the order of their first rows; `seeds` of each row,
    at most `at_once` in one program."""
    alike: dict[str, list[str]] = {}
    for name, settings in configs.items():
        fields = {"row": name} if apart_reason(settings) else program_fields(settings)
        alike.setdefault(json.dumps(fields, sort_keys=True, default=str), []).append(name)
    size = max(1, at_once // seeds)
    groups = []
    for names in alike.values():
        for group in batched(names, size):
            if len(group) * seeds % jax.device_count() == 0:
                groups.append(list(group))
            else:  # in one program, some devices would have nothing to do
                groups += [[name] for name in group]
    return groups


def train_rows(
    sweep: Sweep, rows: Mapping[Path, RowSpec], at_once: int, modules: Modules
) -> list[Row]:
    """Trains what is left of rows that one program can train, and returns them.

    `rows` are by their folders. If memory is too small for `at_once` seeds, rows are trained one
    after another.
    """
    plans = [plan_row(sweep, spec, folder) for folder, spec in rows.items()]
    left = [plan for plan in plans if plan.configs]
    runs: dict[Path, Run | None] = {}
    if left:
        at_once = min(at_once, sum(len(plan.configs) for plan in left))
        reason = apart_reason(left[0].spec.settings)
        if reason and at_once > 1:
            name = left[0].spec.name
            logger.info("%s: seeds are trained one after another: %s", name, reason)
            at_once = 1
        try:
            runs = _train_seeds(left, at_once, modules)
        except NoRoomError as error:
            if len(left) == 1:
                raise
            logger.warning("%s; the rows are trained one after another", error)
            alone = [
                train_rows(sweep, {path: spec}, at_once, modules) for path, spec in rows.items()
            ]
            return [row for (row,) in alone]
    return [_save(sweep, plan, runs, at_once) for plan in plans]


def _save(sweep: Sweep, plan: RowPlan, runs: Mapping[Path, Run | None], at_once: int) -> Row:
    """Writes the result of a row, measured on the runs of its seeds by their workdirs."""
    row = plan.saved
    if row is None or plan.configs:
        spec = plan.spec
        of_row = {plan.folder / seed: runs[plan.folder / seed] for seed in plan.configs}
        row = _measure(sweep, spec, of_row, at_once, _seconds(plan))
        if plan.saved:
            row = results.joined(plan.saved, row)
    write_atomic(plan.folder / RESULT, results.encoded_result(row, plan.asked))
    return row.first_seeds(sweep.seeds)


def _train_seeds(
    plans: Sequence[RowPlan], at_once: int, modules: Modules
) -> dict[Path, Run | None]:
    """The runs of all seeds that are left, by their workdirs; None for one that diverged."""
    configs = {
        workdir_within(plan.folder, seed): settings
        for plan in plans
        for seed, settings in plan.configs.items()
    }
    if len(plans) > 1:
        names = ", ".join(plan.spec.name for plan in plans)
        message = "training %d seeds of %d rows in one program: %s"
        logger.info(message, len(configs), len(plans), names)
    runs: dict[Path, Run | None] = dict.fromkeys(configs)
    with _timer(plans):
        for group in batched(configs, at_once):
            for workdirs in _programs(group, plans[0]):
                program = {workdir: configs[workdir] for workdir in workdirs}
                try:
                    runs |= _train_program(program, plans[0], modules)
                except DivergedError as error:
                    logger.warning("%s", error)
    return runs


def _programs(group: Sequence[Path], row: RowPlan) -> list[Sequence[Path]]:
    """The workdirs of each program that trains seeds of a group.

    Seeds that have begun by themselves continue so, unless all have a joint checkpoint.
    """
    if len(group) > 1 and step_folders(_joint_folder(group, row) / TOGETHER / CHECKPOINTS):
        return [group]
    begun = [workdir for workdir in group if step_folders(workdir / CHECKPOINTS)]
    rest = [workdir for workdir in group if workdir not in begun]
    return [*([workdir] for workdir in begun), *([rest] if rest else [])]


def _joint_folder(workdirs: Sequence[Path], row: RowPlan) -> Path:
    """Folder of the joint checkpoint of seeds: that of their row, if they are all of it."""
    if row.saved is None and list(workdirs) == [row.folder / seed for seed in row.configs]:
        return row.folder
    # Named by its seeds: a program of others cannot resume from its checkpoint.
    names = json.dumps([f"{workdir.parent.name}/{workdir.name}" for workdir in workdirs])
    digest = hashlib.sha256(names.encode()).hexdigest()[:8]
    return workdir_within(row.folder, f"rows_{digest}")


def _train_program(
    configs: Mapping[Path, Settings], row: RowPlan, modules: Modules
) -> dict[Path, Run]:
    """Trains seeds, given by their workdirs, in one program; `row` is the first of its rows."""
    if len(configs) == 1:
        ((workdir, settings),) = configs.items()
        if not (workdir / CHECKPOINTS).exists():
            set_records_aside(workdir)  # of a program with other seeds, which did not end
        return {workdir: train(settings, workdir, modules, until=row.spec.until)}
    joint = _joint_folder([*configs], row)
    joint.mkdir(exist_ok=True)
    # A replica is named by its seed, or by row and seed if the program trains several rows.
    workdirs = {
        path.name if path.parent == joint else f"{path.parent.name}/{path.name}": path
        for path in configs
    }
    replicas = {name: configs[workdir] for name, workdir in workdirs.items()}
    runs = train_replicas(replicas, joint, modules, row.spec.until, workdirs)
    return {workdirs[name]: run for name, run in runs.items()}


def _with_recorded(row: Row, sweep: Sweep, settings: Settings, folder: Path) -> Row:
    """A finished row with the metrics that the sweep asks for now, from the records of its seeds.

    They are None for seeds whose runs are no longer there.
    """
    folders = results.seed_folders(folder)
    workdirs = [folders.get(seed) for seed in seed_configs(settings, row.seeds)]
    records = [results.last_validation(read_metrics(path)) if path else None for path in workdirs]
    # The last validation of a seed that diverged was before that, as in `_measure`.
    seeds = [{} if lost else r for r, lost in zip(records, row.diverged, strict=True)]
    metrics = dict(row.metrics)
    for name in sweep.metrics:
        if name not in metrics:
            metrics[name] = [None if r is None else _metric(r, name) for r in seeds]
    return dataclasses.replace(row, metrics=metrics)


@contextlib.contextmanager
def _timer(rows: Sequence[RowPlan]) -> Iterator[None]:
    """Adds the time of the block to the file `seconds` of each row, in equal shares."""
    start = time.perf_counter()
    try:
        yield
    finally:
        share = (time.perf_counter() - start) / len(rows)
        for row in rows:
            if any((row.folder / seed / MARK).exists() for seed in row.configs):  # it has begun
                write_atomic(row.folder / SECONDS, f"{_seconds(row) + share:.1f}\n")


def _seconds(row: RowPlan) -> float:
    """The time of a row in all starts so far."""
    saved = row.saved.seconds if row.saved else 0.0
    try:
        spent = float(read_regular(row.folder / SECONDS))
    except (OSError, ValueError):
        return saved
    return max(saved, spent) if math.isfinite(spent) else saved


def _measure(
    sweep: Sweep, spec: RowSpec, runs: Mapping[Path, Run | None], at_once: int, seconds: float
) -> Row:
    """Measures a row on the runs of its seeds, by their workdirs."""
    trained = [run for run in runs.values() if run is not None]
    names = list(sweep.metrics)
    if not names:
        criteria = [run.task.best_by.removeprefix("-") for run in trained[:1]]
        names = list(dict.fromkeys(["loss", *criteria]))
    validations: list[Mapping[str, Any]] = []
    speeds: list[float] = []
    for path, run in runs.items():
        records: Sequence[Mapping[str, Any]] = []
        with contextlib.suppress(UserError):  # a seed may diverge before its first record
            records = read_metrics(path)
        # The last validation of a seed that diverged was before that: it is no measure of the seed.
        validations.append(results.last_validation(records) if run else {})
        speeds += [record["tokens_per_s"] for record in records if record["split"] == "train"]
    metrics = {name: [_metric(record, name) for record in validations] for name in names}
    for name, changes in sweep.also.items():
        metrics[name] = [_loss_with(run, changes) if run else None for run in runs.values()]
    parameters = count_parameters(trained[0].params) if trained else 0
    speed = statistics.median(speeds) * at_once if speeds else 0.0
    return Row(spec.name, metrics, parameters, speed, seconds, spec.values, spec.until)


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
