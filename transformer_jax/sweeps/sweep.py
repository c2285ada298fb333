# SPDX-License-Identifier: Apache-2.0
"""Sweeps: variants of one config, each trained with several seeds, and a table of their metrics.

Each row of the definition (`sweeps.definition`) has a folder in the sweep's workdir; a row that is
finished is not trained again. Any number of processes may work on one sweep
(`sweeps.shared_folder`).
"""

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
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax.data.sources import open_split
from transformer_jax.errors import BusyError, DivergedError, NoRoomError, UserError
from transformer_jax.parallel.sharding import mesh_for_inference
from transformer_jax.runs import build
from transformer_jax.runs.config import Settings, failing_as, read_settings
from transformer_jax.runs.prepare import sharing_tokenizers
from transformer_jax.runs.replica_numbers import apart_reason
from transformer_jax.runs.run import Run
from transformer_jax.runs.seeds import seed_configs, train_replicas
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
from transformer_jax.sweeps.programs import (
    AT_ONCE,
    describe_group,
    group_rows,
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
      at_once: most seeds to train in one program; None: all of a row, and 8 of several rows.
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
    at_once = at_once or max(sweep.seeds, AT_ONCE)
    for name, config in wanted.items():
        check_row(sweep, name, config)
    folder = SweepFolder(workdir)
    warn_of_other_rows(folder, configs)

    def find(name: str) -> Row | None:
        return result_of(folder, name, sweep, configs[name])

    def train_rows(names: Sequence[str], whole: bool) -> list[str]:
        """Trains rows in one program; returns those that other processes train.

        If there are any and `whole`, none is trained: their process may be about to claim all.
        """
        # A claim of a row in a bucket would download it.
        left = [name for name in names if not is_complete(find(name), sweep)]
        busy, places = list[str](), dict[str, Path]()
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
            _train_rows(sweep, claimed, places, at_once, modules)
        return busy

    def write() -> None:
        rows = [row for row in map(find, configs) if row is not None]
        folder.write(lambda place: write_tables(rows, place))

    with shown(progress), sharing_tokenizers():
        groups = group_rows(wanted, sweep.seeds, at_once)
        left = [g for g in groups if not all(is_complete(find(name), sweep) for name in g)]
        for _ in _claimed(left, train_rows):
            write()
        if not left:
            write()
    return Rows(row for row in map(find, wanted) if row is not None)


def _claimed(
    groups: Sequence[Sequence[str]], train_rows: Callable[[Sequence[str], bool], list[str]]
) -> Iterator[None]:
    """Yields after rows of a group were trained; rows that other processes train come last.

    Those are tried again until they are finished: then they are only read, and if their process
    was killed, this one goes on with them.
    """
    left, told, whole = list(groups), False, True
    while left:
        busy, has_trained = list[Sequence[str]](), False
        for group in left:
            if others := train_rows(group, whole):
                busy.append(others)
            if len(others) < len(group):
                has_trained = True
                yield
        if busy and not has_trained:
            if not told:
                names = ", ".join(name for group in busy for name in group)
                logger.info("waiting for other processes, which train %s", names)
                told = True
            time.sleep(_POLL_SECONDS)
        left, whole = busy, False


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


def check_row(sweep: Sweep, name: str, config: ConfigDict) -> None:
    """Raises UserError if a row cannot train: before any row has, so that none trains in vain."""
    try:
        seeds = seed_configs(config, sweep.seeds)
        settings = [read_settings(one) for one in seeds.values()][0]
        _check_metrics(sweep, settings)
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


@dataclasses.dataclass(frozen=True)
class _RowToTrain:
    """A row, and its seeds that are not trained.

    If it is finished with fewer seeds, only the others are trained: one beside them, several in a
    folder of their own, because those that train together share a checkpoint.

    Attributes:
      sweep: the sweep.
      name: name of the row.
      config: its config.
      folder: its folder.
    """

    sweep: Sweep
    name: str
    config: ConfigDict
    folder: Path

    @functools.cached_property
    def asked(self) -> dict[str, Any]:
        """Identity of the row's result."""
        return asked_of(self.sweep, self.config)

    @functools.cached_property
    def saved(self) -> Row | None:
        """The row with the seeds that are finished, and the metrics that the sweep asks for now."""
        found = saved_row(self.folder / RESULT, self.name, self.asked)
        if found is None or is_complete(found, self.sweep):
            return found
        return _with_recorded(found, self.sweep, self.config, self.folder)

    @property
    def is_trained(self) -> bool:
        """Returns True if all seeds are."""
        return self.saved is not None and not self.configs

    @functools.cached_property
    def configs(self) -> dict[str, ConfigDict]:
        """Configs of the seeds to train, {"seed_N": config}."""
        first = self.saved.seeds if self.saved else 0
        return dict(islice(seed_configs(self.config, self.sweep.seeds).items(), first, None))

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


def _train_row(
    sweep: Sweep, name: str, config: ConfigDict, folder: Path, at_once: int, modules: Modules
) -> Row:
    """Trains a row, or reads it from its folder if it is finished."""
    row = _RowToTrain(sweep, name, config, folder)
    if row.is_trained:
        return row.save_recorded()
    if reason := apart_reason(read_settings(config)):
        if at_once > 1 and len(row.configs) > 1:
            logger.info("%s: seeds are trained one after another: %s", name, reason)
        at_once = 1
    with _timer(row.place / SECONDS) as seconds:
        runs = dict(_train_seeds(row.configs, row.place, at_once, modules))
        return row.save(runs, min(at_once, len(row.configs)), seconds())


def _train_rows(
    sweep: Sweep,
    configs: Mapping[str, ConfigDict],
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
    for name, config in configs.items():
        _train_row(sweep, name, config, folders[name], at_once, modules)


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
    # As another program leaves them, which trained this row with others.
    apart = all(has_own_checkpoint(folder, seed) for seed in configs)
    apart &= not has_joint_checkpoint(folder)
    if len(configs) > 1 and not apart:
        return train_replicas(configs, folder, modules)
    runs = {}
    for name, config in configs.items():
        own = workdir_within(folder, name)
        restart_abandoned(own)
        runs[name] = train(config, own, modules)
    return runs


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
