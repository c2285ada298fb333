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
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import batched, islice
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax.data.sources import open_split
from transformer_jax.errors import BusyError, DivergedError, UserError
from transformer_jax.parallel.sharding import mesh_for_inference
from transformer_jax.runs import build
from transformer_jax.runs.config import Settings, failing_as, read_settings
from transformer_jax.runs.prepare import sharing_tokenizers
from transformer_jax.runs.run import Run
from transformer_jax.runs.seeds import check_alike, seed_configs, train_replicas
from transformer_jax.runs.train import train
from transformer_jax.runs.user_modules import Modules, describe_module_error, load_modules
from transformer_jax.runs.workdir import (
    MARK,
    RESULT,
    SECONDS,
    SWEEP,
    lock_workdir,
    open_for_writing,
    read_metrics,
    workdir_within,
)
from transformer_jax.runtime.files import SETTINGS_BYTES, read_regular, write_atomic
from transformer_jax.runtime.progress import set_title, shown
from transformer_jax.scoring import METRICS
from transformer_jax.suggestions import suggest
from transformer_jax.sweeps.definition import Sweep
from transformer_jax.sweeps.results import (
    asked_of,
    encoded_result,
    is_complete,
    joined,
    result_of,
    saved_row,
    seed_folders,
    warn_of_other_rows,
)
from transformer_jax.sweeps.shared_folder import SweepFolder
from transformer_jax.sweeps.table_files import write_tables
from transformer_jax.sweeps.tables import Row, Rows
from transformer_jax.tasks.losses import batch_shapes

_POLL_SECONDS = 2.0
"""Time between looks at rows that other processes train."""

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
    """Trains the rows that are not finished; writes its tables (`write_tables`).

    Args:
      sweep: the definition.
      workdir: of the sweep; a sweep that stopped is resumed.
      overrides: of all rows.
      at_once: number of seeds to train in one program; None: all of a row.
      chosen: a regular expression; only rows whose name contains a match are trained.
      modules: the user's own, with components that configs name (`runs.user_modules`).
      progress: show the progress, as `train` does.

    Returns:
      The rows.

    Raises:
      UserError: a config, its data or a module is invalid, or the workdir holds another sweep.
      Stopped: a SIGTERM came while a row was trained; the same call resumes.
    """
    load_modules(modules, workdir)
    configs = sweep.configs(overrides or {})
    wanted = sweep.configs(overrides or {}, chosen)
    at_once = min(at_once or sweep.seeds, sweep.seeds)
    for name, config in wanted.items():
        _check_row(sweep, name, config, at_once)
    folder = SweepFolder(workdir)
    warn_of_other_rows(folder, configs)

    def find(name: str) -> Row | None:
        return result_of(folder, name, sweep, configs[name])

    def train_row(name: str) -> None:
        if is_complete(find(name), sweep):
            return  # another process has trained it; a claim would download it from a bucket
        number = [*wanted].index(name) + 1
        with folder.claim(name) as place:
            logger.info("row %d of %d: %s", number, len(wanted), name)
            set_title(f"row {number}/{len(wanted)}")
            _train_row(sweep, name, configs[name], place, at_once, modules)

    def write() -> None:
        rows = [row for row in map(find, configs) if row is not None]
        folder.write(lambda place: write_tables(rows, place))

    with shown(progress), sharing_tokenizers():
        left = [name for name in wanted if not is_complete(find(name), sweep)]
        for _ in _claimed(left, train_row):
            write()
        if not left:
            write()
    return Rows(row for row in map(find, wanted) if row is not None)


def _claimed(names: Sequence[str], train_row: Callable[[str], None]) -> Iterator[str]:
    """Yields each row after it was trained; rows that other processes train come last.

    Those are tried again until they are finished: then they are only read, and if their process
    was killed, this one goes on with them.
    """
    left, told = list(names), False
    while left:
        busy = []
        for name in left:
            try:
                train_row(name)
            except BusyError:
                busy.append(name)
            else:
                yield name
        if busy and len(busy) == len(left):
            if not told:
                logger.info("waiting for other processes, which train %s", ", ".join(busy))
                told = True
            time.sleep(_POLL_SECONDS)
        left = busy


def run_seeds(
    config: ConfigDict, workdir: str | Path, count: int, modules: Modules = ()
) -> list[Row]:
    """Trains `count` seeds of a config together in `workdir/seed_0` and so on, and writes a table.

    The table has one row. Arguments and errors are otherwise those of `run_sweep`.

    Raises:
      DivergedError: the loss of every seed is no longer finite. (In a sweep this is a result.)
    """
    with (
        shown(),
        open_for_writing(workdir) as handle,
        lock_workdir(handle.folder, SWEEP),
    ):
        name = handle.folder.absolute().name
        sweep = Sweep(config="", rows={name: {}}, seeds=count)
        rows = [_train_row(sweep, name, config, handle.folder, count, modules)]
        write_tables(rows, handle.folder)
    if not rows[0].parameters:  # no seed left a model
        raise DivergedError(f"{workdir}: the loss of every seed is no longer finite")
    return rows


def _check_row(sweep: Sweep, name: str, config: ConfigDict, at_once: int) -> None:
    """Raises UserError if a row cannot train: before any row has, so that none trains in vain."""
    try:
        seeds = seed_configs(config, sweep.seeds).items()
        members = {seed: read_settings(one) for seed, one in seeds}
        settings = next(iter(members.values()))
        _check_metrics(sweep, settings)
        if at_once > 1:
            check_alike(members)
        _check_model(settings)
    except UserError as error:
        raise UserError(f"row {name!r}: {error}") from error


def _check_model(settings: Settings) -> None:
    """Raises UserError if the model, or a user's component of it in training, fails on shapes."""
    task, rng = build.build_untokenized_task(settings), jax.random.key(0)
    batch = batch_shapes(task.lengths, build.batch_rows(settings, task))
    try:
        jax.eval_shape(task.loss, jax.eval_shape(task.init, rng), batch, rng, {})
    except Exception as error:
        if line := describe_module_error(error):
            raise UserError(line) from error
        # Batches of some tasks have further arrays.


def _check_metrics(sweep: Sweep, settings: Settings) -> None:
    """Raises UserError if a sweep names a metric that the runs of a row will not have."""
    kind = build.task_kind(settings)
    if not kind.metrics:
        return
    known = set(kind.metrics)
    if metric := settings.task.metric or kind.metric:
        with failing_as(f"task.metric {metric} fails on a text of one letter"):
            found = METRICS.configured(metric, settings.task)(["a"], ["a"])
        known |= {name for name, value in found.items() if not isinstance(value, str)}
    for name in sweep.metrics:
        if name not in known:
            hint = suggest(name, known) or f"; it has {', '.join(sorted(known))}"
            raise UserError(f"task {settings.task.name} has no metric {name!r}{hint}")


def _train_row(
    sweep: Sweep, name: str, config: ConfigDict, folder: Path, at_once: int, modules: Modules
) -> Row:
    """Trains a row, or reads it from its folder if it is finished.

    If it is finished with fewer seeds, only the others are trained: one beside them, several in a
    folder of their own, because those that train together share a checkpoint.
    """
    path = folder / RESULT
    asked = asked_of(sweep, config)
    saved = saved_row(path, name, asked)
    if saved is not None and is_complete(saved, sweep):
        return saved.first_seeds(sweep.seeds)
    if saved is not None:
        saved = _with_recorded(saved, sweep, config, folder)
    first = saved.seeds if saved else 0
    configs = dict(islice(seed_configs(config, sweep.seeds).items(), first, None))
    if saved is not None and not configs:
        write_atomic(path, encoded_result(saved, asked | {"seeds": saved.seeds}))
        return saved.first_seeds(sweep.seeds)
    place = folder
    if first and len(configs) > 1:
        place = workdir_within(folder, f"from_{first}")
        place.mkdir(exist_ok=True)
    with _timer(place / SECONDS) as seconds:
        runs = dict(_train_seeds(configs, place, at_once, modules))
        row = Row(name, **_measure(sweep, runs, min(at_once, len(configs))), seconds=seconds())
    if saved:
        row = joined(saved, row)
    write_atomic(path, encoded_result(row, asked))
    return row


def _with_recorded(row: Row, sweep: Sweep, config: ConfigDict, folder: Path) -> Row:
    """A finished row with the metrics that the sweep asks for now, from the records of its seeds.

    They are None for seeds whose runs are no longer there.
    """
    folders = seed_folders(folder)
    runs = [folders.get(seed) for seed in seed_configs(config, row.seeds)]
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
        before = float(read_regular(path, SETTINGS_BYTES))
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
    configs: Mapping[str, ConfigDict], folder: Path, at_once: int, modules: Modules
) -> Iterator[tuple[Path, Run | None]]:
    """Yields the workdir and the run of each config; None for a run that diverged."""
    groups = list(batched(configs.items(), at_once))
    for number, group in enumerate(map(dict, groups)):
        place = folder if len(groups) == 1 else workdir_within(folder, f"group_{number}")
        runs: dict[str, Run | None] = dict.fromkeys(group)
        try:
            runs |= _train_group(group, place, modules)
        except DivergedError as error:
            logger.warning("%s", error)
        for name, run in runs.items():
            yield place / name, run


def _train_group(
    configs: Mapping[str, ConfigDict], folder: Path, modules: Modules
) -> dict[str, Run]:
    if len(configs) > 1:
        return train_replicas(configs, folder, modules)
    return {
        name: train(config, workdir_within(folder, name), modules)
        for name, config in configs.items()
    }


def _measure(sweep: Sweep, runs: Mapping[Path, Run | None], at_once: int) -> dict[str, Any]:
    """Fields of a `Row` except name and seconds."""
    trained = [run for run in runs.values() if run is not None]
    names = list(sweep.metrics or _default_metrics(trained))
    records = [read_metrics(path) for path in runs]
    valid = [_last_record(of_run, "valid") for of_run in records]
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
    settings = read_settings(run.config)
    examples, mesh = open_split(settings.data, "valid"), mesh_for_inference(settings.parallel)
    evaluator = build.build_evaluator(settings, run.task, examples, settings.decode, mesh)
    return float(evaluator.loss_metrics(run.params, run.frozen)["loss"])
