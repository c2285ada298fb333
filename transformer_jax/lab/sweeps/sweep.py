# SPDX-License-Identifier: Apache-2.0
"""Sweeps: variants of one config, each trained with several seeds, and a table of their metrics.

Each row of the definition (`sweeps.definition`) has a folder in the sweep's workdir; a row that is
finished is not trained again. Any number of processes may work on one sweep
(`sweeps.shared_folder`).
"""

import contextlib
import dataclasses
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from transformer_jax.errors import BusyError, DivergedError, UserError
from transformer_jax.lab.sweeps.definition import Sweep
from transformer_jax.lab.sweeps.halving import Job
from transformer_jax.lab.sweeps.programs import AT_ONCE, group_rows
from transformer_jax.lab.sweeps.results import (
    any_result,
    is_complete,
    result_of,
    warn_of_other_rows,
)
from transformer_jax.lab.sweeps.row_training import TrialToTrain, train_row, train_rows
from transformer_jax.lab.sweeps.search import METHODS, DecisionLog, Trial, row_name, run_trials
from transformer_jax.lab.sweeps.shared_folder import SweepFolder
from transformer_jax.lab.sweeps.table_files import write_tables
from transformer_jax.lab.sweeps.tables import Row, Rows
from transformer_jax.lab.sweeps.trials import score_of, search_of, trial_config
from transformer_jax.runs import build
from transformer_jax.runs.config import failing_as, resolve
from transformer_jax.runs.prepare import sharing_tokenizers
from transformer_jax.runs.seeds import seed_configs
from transformer_jax.runs.settings import COMMAND, Settings
from transformer_jax.runs.user_modules import Modules, describe_module_error, load_modules
from transformer_jax.runs.workdir import SWEEP, TABLE, lock_workdir, open_for_writing
from transformer_jax.runtime.progress import set_title, shown
from transformer_jax.scoring import METRICS
from transformer_jax.suggestions import suggest
from transformer_jax.tasks.losses import batch_shapes

_POLL_SECONDS = 2.0  # between looks at rows that other processes train

logger = logging.getLogger(__name__)


class _Plan(NamedTuple):
    """The work of a sweep.

    Attributes:
      folder: of the sweep.
      work: yields after each piece of work.
      finished: returns the rows so far.
    """

    folder: SweepFolder
    work: Iterator[None]
    finished: Callable[[], Rows]


def run_sweep(
    sweep: Sweep,
    workdir: str | Path,
    overrides: Mapping[str, Any] | None = None,
    at_once: int | None = None,
    chosen: str = "",
    modules: Modules = (),
    *,
    progress: bool = True,
) -> Rows:
    """Trains the rows that are not finished, writes the tables (`write_tables`), returns the rows.

    Args:
      workdir: of the sweep; a sweep that stopped is resumed.
      overrides: of all rows.
      at_once: most seeds to train in one program; None: all of a row, and 8 of several rows.
      chosen: a regular expression; only rows whose name contains a match are trained.
      modules: the user's own, with components that configs name (`runs.user_modules`).
      progress: show the progress, as `train` does.

    Raises:
      UserError: a config, its data or a module is invalid, or the workdir holds another sweep.
      Stopped: a SIGTERM came while a row was trained; the same call resumes.
    """
    load_modules(modules, workdir)
    make_plan = _plan_trials if sweep.space else _plan_rows
    at_once = at_once or max(sweep.seeds, AT_ONCE)
    plan = make_plan(sweep, workdir, overrides or {}, at_once, chosen, modules)

    def write() -> None:
        plan.folder.write(lambda place: write_tables(plan.finished(), place))

    with shown(progress), sharing_tokenizers():
        has_worked = False
        for _ in plan.work:
            has_worked = True
            write()
        if not has_worked:
            write()
    return Rows(row for row in plan.finished() if re.search(chosen, row.name))


def _plan_rows(
    sweep: Sweep,
    workdir: str | Path,
    overrides: Mapping[str, Any],
    at_once: int,
    chosen: str,
    modules: Modules,
) -> _Plan:
    """The work on given rows; arguments and errors as of `run_sweep`."""
    configs = sweep.configs(overrides)
    wanted = sweep.configs(overrides, chosen)
    for name, settings in wanted.items():
        check_row(sweep, name, settings)
    folder = SweepFolder(workdir)
    if folder.entry(0) is not None:
        raise UserError(f"{folder} holds a search; choose another --workdir for these rows")
    warn_of_other_rows(folder, configs)

    def find(name: str) -> Row | None:
        return result_of(folder, name, sweep, configs[name])

    def train(names: Sequence[str], whole: bool) -> list[str]:
        """Trains rows in one program; returns those that other processes train.

        If there are any and `whole`, none is trained: their process may be about to claim all.
        """
        # Finished rows are not claimed: a claim of a row in a bucket would download it.
        left = [name for name in names if not is_complete(find(name), sweep)]
        busy: list[str] = []
        places: dict[str, Path] = {}
        with contextlib.ExitStack() as claims:
            for name in left:
                try:
                    places[name] = claims.enter_context(folder.claim(name))
                except BusyError:
                    busy.append(name)
            if busy and (whole or not places):
                return left
            for name in places:
                number = [*wanted].index(name) + 1
                logger.info("row %d of %d: %s", number, len(wanted), name)
                set_title(f"row {number}/{len(wanted)}")
            claimed = {name: configs[name] for name in places}
            train_rows(sweep, claimed, places, at_once, modules)
        return busy

    groups = group_rows(wanted, sweep.seeds, at_once)
    left = [g for g in groups if not all(is_complete(find(name), sweep) for name in g)]

    def finished() -> Rows:
        return Rows(row for row in map(find, configs) if row is not None)

    return _Plan(folder, _claimed(left, train), finished)


def _plan_trials(
    sweep: Sweep,
    workdir: str | Path,
    overrides: Mapping[str, Any],
    at_once: int,
    chosen: str,
    modules: Modules,
) -> _Plan:
    """The work on the trials of a search; arguments and errors as of `run_sweep`."""
    if chosen:
        raise UserError("--rows chooses rows of a sweep, and this one is a search; leave it out")
    search = search_of(sweep, overrides)
    goal: str = search.fixed["goal"]
    goal_metric = goal.removeprefix("-")
    named = [*sweep.metrics, *([goal_metric] if sweep.goal else [])]
    first = trial_config(sweep, overrides, METHODS[search.method](search, []))
    check_row(dataclasses.replace(sweep, metrics=named), row_name(0), first)
    metrics = dict.fromkeys([*(sweep.metrics or ["loss"]), goal_metric])
    measured = dataclasses.replace(sweep, metrics=list(metrics))
    folder = SweepFolder(workdir)
    if folder.entry(0) is None and folder.read(f"{TABLE}.csv") is not None:
        raise UserError(f"{folder} holds a sweep; choose another --workdir for a search")
    log = DecisionLog(folder, search)

    def train(job: Job, trial: Trial, place: Path) -> float:
        name = row_name(job.trial)
        until = search.rungs[job.rung]
        try:
            settings = trial_config(sweep, overrides, trial.values)
        except UserError as error:  # values that do not go together count as diverged
            logger.warning("%s", error)
            return -math.inf
        logger.info("%s of %d, to step %d", name, log.state.limit, until)
        set_title(f"trial {job.trial + 1}/{log.state.limit}")
        part = TrialToTrain(trial.values, until)
        return score_of(train_row(measured, name, settings, place, at_once, modules, part), goal)

    def finished() -> Rows:
        rows = (any_result(folder, row_name(trial)) for trial in log.read().ranking())
        return Rows(row for row in rows if row is not None)

    return _Plan(folder, run_trials(log, folder, train), finished)


def _claimed(
    groups: Sequence[Sequence[str]], train_rows: Callable[[Sequence[str], bool], list[str]]
) -> Iterator[None]:
    """Yields after rows of a group were trained; rows that other processes train come last.

    Those are tried again until they are finished: then they are only read, and if their process
    was killed, this one trains them.
    """
    left = list(groups)
    is_waiting = False
    whole = True  # later, rows that are free are trained without the others of their group
    while left:
        busy: list[Sequence[str]] = []
        has_trained = False
        for group in left:
            others = train_rows(group, whole)
            if others:
                busy.append(others)
            if len(others) < len(group):
                has_trained = True
                yield
        if busy and not has_trained:
            if not is_waiting:
                names = ", ".join(name for group in busy for name in group)
                logger.info("waiting for other processes, which train %s", names)
                is_waiting = True
            time.sleep(_POLL_SECONDS)
        left = busy
        whole = False


def run_seeds(
    config: Settings | ConfigDict, workdir: str | Path, count: int, modules: Modules = ()
) -> list[Row]:
    """Trains `count` seeds of a config together in `workdir/seed_0` and so on, and writes a table.

    The table has one row. Arguments and errors are otherwise those of `run_sweep`.

    Raises:
      DivergedError: the loss of every seed is no longer finite. (In a sweep this is a result.)
    """
    with shown(), open_for_writing(workdir) as handle, lock_workdir(handle.folder, SWEEP):
        name = handle.folder.absolute().name
        sweep = Sweep(config="", rows={name: {}}, seeds=count)
        settings = resolve(config, {}, modules, COMMAND)
        rows = [train_row(sweep, name, settings, handle.folder, count, modules)]
        write_tables(rows, handle.folder)
    if not rows[0].parameters:  # no seed left a model
        raise DivergedError(f"{workdir}: the loss of every seed is no longer finite")
    return rows


def check_row(sweep: Sweep, name: str, settings: Settings) -> None:
    """Raises UserError if a row cannot train: before any row has, so that none trains in vain."""
    try:
        seed_configs(settings, sweep.seeds)
        _check_metrics(sweep, settings)
        _check_model(settings)
    except UserError as error:
        raise UserError(f"row {name!r}: {error}") from error


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
