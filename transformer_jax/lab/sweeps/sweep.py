# SPDX-License-Identifier: Apache-2.0
"""Sweeps: variants of one config, each trained with several seeds, and a table of their metrics.

Each row of the definition (`sweeps.definition`) has a folder in the sweep's workdir; a row that is
finished is not trained again. Any number of processes may work on one sweep
(`sweeps.shared_folder`).
"""

import contextlib
import dataclasses
import itertools
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.buckets.bucket import is_address
from transformer_jax.errors import BusyError, DivergedError, UserError
from transformer_jax.lab.sweeps.definition import Sweep, choose
from transformer_jax.lab.sweeps.results import result_of, seed_folders, warn_of_other_rows
from transformer_jax.lab.sweeps.row_training import (
    AT_ONCE,
    RowSpec,
    check_row,
    group_rows,
    row_data,
    train_rows,
)
from transformer_jax.lab.sweeps.search import Search, row_name, search_of, trial_config
from transformer_jax.lab.sweeps.shared_folder import SweepFolder, folder_name
from transformer_jax.lab.sweeps.tables import Row, Rows, write_tables
from transformer_jax.runs.config import resolve
from transformer_jax.runs.prepare import sharing_tokenizers
from transformer_jax.runs.settings import COMMAND, Settings
from transformer_jax.runs.user_modules import Modules, load_modules
from transformer_jax.runs.workdir import SWEEP, lock_workdir, open_for_writing
from transformer_jax.runtime.progress import set_title, shown

logger = logging.getLogger(__name__)


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

    Raises:
      UserError: a config, its data or a module is invalid, or the workdir holds another sweep.
      Stopped: a SIGTERM came while a row was trained; the same call resumes.
    """
    load_modules(modules, workdir)
    sweep = sweep.with_base(overrides)
    at_once = at_once or max(sweep.seeds, AT_ONCE)
    search = None
    if sweep.space:
        search = search_of(sweep)
        sweep = _measured_trials(sweep, search)
    specs = {}
    if search and search.uses_study:
        if chosen:
            raise UserError("--rows chooses rows that are known beforehand; leave it out")
        first = trial_config(sweep, search.drawn(0))
        has_own_data = any(name.startswith("data.") for name in sweep.space)
        data = {} if has_own_data else row_data({row_name(0): first})[row_name(0)]
        search = dataclasses.replace(search, fixed={**search.fixed, **data})
        folder = SweepFolder(workdir)
        pieces = _train_trials(sweep, search, folder, at_once, modules, data)
    else:
        specs = _row_specs(sweep, search)
        wanted = choose(specs, chosen)
        if search is None:
            for name in wanted:
                check_row(sweep, name, specs[name].settings)
        folder = SweepFolder(workdir)
        digests = row_data({name: spec.settings for name, spec in specs.items()})
        specs = {name: spec._replace(data=digests[name]) for name, spec in specs.items()}
        warn_of_other_rows(folder, specs)
        if not is_address(workdir):
            for name in wanted:  # a finished row is only read, whatever its components compute now
                for seed in seed_folders(Path(workdir) / folder_name(name)).values():
                    with contextlib.suppress(UserError):  # a module that it was given is not here
                        load_modules((), seed)  # warns if one has changed
        chosen_specs = {name: specs[name] for name in wanted}
        pieces = _train_groups(sweep, chosen_specs, folder, at_once, modules)

    def finished() -> Rows:
        if specs:
            rows = [_finished_row(folder, sweep, spec) for spec in specs.values()]
        else:
            assert search
            rows = [result_of(folder, row_name(number), None) for number in range(search.limit)]
        complete = Rows(row for row in rows if row is not None)
        return search.ranked(complete) if search else complete

    with shown(progress), sharing_tokenizers():
        for _ in itertools.chain(pieces, [None]):  # at last of rows that were finished before, too
            folder.write(lambda place: write_tables(finished(), place))
    return Rows(row for row in finished() if re.search(chosen, row.name))


def _measured_trials(sweep: Sweep, search: Search) -> Sweep:
    """The sweep with the metrics of all its trials; UserError if a trial cannot train."""
    goal = search.goal.removeprefix("-")
    first = trial_config(sweep, search.drawn(0))
    named = [*sweep.metrics, *([goal] if sweep.goal else [])]
    check_row(dataclasses.replace(sweep, metrics=named), row_name(0), first)
    metrics = dict.fromkeys([*(sweep.metrics or ["loss"]), goal])
    return dataclasses.replace(sweep, metrics=list(metrics))


def _row_specs(sweep: Sweep, search: Search | None) -> dict[str, RowSpec]:
    """The rows of a sweep, or the trials of a search, that are known beforehand, by name."""
    if search is None:
        return {name: RowSpec(name, settings) for name, settings in sweep.configs().items()}
    specs = {}
    for number in range(search.limit):
        name = row_name(number)
        values = search.drawn(number)
        settings = trial_config(sweep, values)
        specs[name] = RowSpec(name, settings, values, until=search.rungs[-1])
    return specs


def _finished_row(folder: SweepFolder, sweep: Sweep, spec: RowSpec) -> Row | None:
    row = result_of(folder, spec.name, sweep.asked(spec.settings, spec.until, spec.data))
    return row.first_seeds(sweep.seeds) if row else None


def _train_trials(
    sweep: Sweep,
    search: Search,
    folder: SweepFolder,
    at_once: int,
    modules: Modules,
    data: Mapping[str, str],
) -> Iterator[None]:
    """Trains the trials of a study; yields after each."""
    from transformer_jax.lab.sweeps.study import run_trials

    def train(number: int, values: Mapping[str, Any], steps: int, place: Path) -> float:
        try:
            settings = trial_config(sweep, values)
        except UserError as error:  # values that do not go together count as diverged
            logger.warning("%s", error)
            return -math.inf
        name = row_name(number)
        logger.info("%s of %d, to step %d", name, search.limit, steps)
        set_title(f"trial {number + 1}/{search.limit}")
        spec = RowSpec(name, settings, values, steps, data)
        (row,) = train_rows(sweep, {place: spec}, at_once, modules)
        return search.score(row)

    return run_trials(folder, search, train)


def _train_groups(
    sweep: Sweep, specs: Mapping[str, RowSpec], folder: SweepFolder, at_once: int, modules: Modules
) -> Iterator[None]:
    """Trains rows, those of one program together; yields after each group.

    Rows that other processes train come last. Those are tried again until they are finished: then
    they are only read, and if their process was killed, this one trains them.
    """

    def unfinished(names: Sequence[str]) -> list[str]:
        left = []
        for name in names:
            row = _finished_row(folder, sweep, specs[name])
            if row is None or not row.is_complete(sweep.seeds, sweep.metrics):
                left.append(name)
        return left

    def train(names: Sequence[str], whole: bool) -> bool:
        """Trains the rows that no other process trains, in one program. False if there are none,
        or, with `whole`, if others train one: then nothing is trained."""
        places: dict[Path, RowSpec] = {}
        with contextlib.ExitStack() as claims:
            for name in names:
                with contextlib.suppress(BusyError):
                    places[claims.enter_context(folder.claim(name))] = specs[name]
            if not places or (whole and len(places) < len(names)):
                return False
            for spec in places.values():
                number = [*specs].index(spec.name) + 1
                logger.info("row %d of %d: %s", number, len(specs), spec.name)
                set_title(f"row {number}/{len(specs)}")
            train_rows(sweep, places, at_once, modules)
        return True

    configs = {name: spec.settings for name, spec in specs.items()}
    groups = group_rows(configs, sweep.seeds, at_once)
    # At first a process that trains some rows of a group may be about to claim all. Later, rows
    # that are free are trained without the others.
    whole = True
    while groups := [group for group in map(unfinished, groups) if group]:
        has_trained = False
        for group in groups:
            # Finished rows are not claimed: a claim of a row in a bucket would download it.
            if train(unfinished(group), whole):
                has_trained = True
                yield
        if not has_trained:
            folder.wait_for([name for group in groups for name in group])
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
        spec = RowSpec(name, settings, data=row_data({name: settings})[name])
        rows = train_rows(sweep, {handle.folder: spec}, count, modules)
        write_tables(rows, handle.folder)
    if not rows[0].parameters:  # no seed left a model
        raise DivergedError(f"{workdir}: the loss of every seed is no longer finite")
    return rows
