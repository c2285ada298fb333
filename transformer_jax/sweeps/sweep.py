"""Sweeps: variants of one config, each with several seeds, trained and made a table of.

A folder of a sweep's workdir holds each row; what is finished there is not done again.
"""

import contextlib
import difflib
import json
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import batched
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax.data.sources import open_split
from transformer_jax.errors import DivergedError, UserError
from transformer_jax.parallel.sharding import mesh_for_inference
from transformer_jax.runs import build
from transformer_jax.runs.config import Settings, failing_as, read_settings
from transformer_jax.runs.run import Run
from transformer_jax.runs.seeds import seed_configs, train_replicas
from transformer_jax.runs.train import train
from transformer_jax.runs.user_modules import Modules, load_modules
from transformer_jax.runs.workdir import (
    MARK,
    RESULT,
    SECONDS,
    SWEEP,
    TABLE,
    lock_workdir,
    open_for_writing,
    workdir_within,
)
from transformer_jax.runtime.files import (
    SETTINGS_BYTES,
    atomic_writer,
    read_regular,
    write_atomic,
)
from transformer_jax.scoring import METRICS
from transformer_jax.sweeps import tables
from transformer_jax.sweeps.files import Sweep, folder_name
from transformer_jax.sweeps.tables import Row, draw_rows
from transformer_jax.tools.plots import read_records

# FOLDED sweeps.folder: What the folder of a sweep, and of each of its rows, keeps besides the
# runs.


logger = logging.getLogger(__name__)


def write_tables(rows: Sequence[Row], workdir: Path) -> None:
    """Writes table.txt, table.md, table.csv and table.png into a workdir."""
    ways = {"txt": tables.as_text, "md": tables.as_markdown, "csv": tables.as_csv}
    for ending, write in ways.items():
        write_atomic(workdir / f"{TABLE}.{ending}", write(rows).rstrip() + "\n")
    with atomic_writer(workdir / f"{TABLE}.png") as file:
        draw_rows(rows).savefig(file, format="png")


def kept_row(path: Path, name: str, asked: Mapping[str, Any]) -> Row | None:
    """The finished row that a file keeps; None where it keeps none, or another one."""
    try:
        result = json.loads(read_regular(path, SETTINGS_BYTES))
        return Row(name, **result["row"]) if result["asked"] == asked else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        logger.warning("%s is damaged or of an earlier version; it is measured again", path)
        return None


@contextlib.contextmanager
def stopwatch(path: Path) -> Iterator[Callable[[], float]]:
    """Gives a function that returns the seconds spent so far, earlier starts' included; they are
    kept in a file once a run has begun beside it."""
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


def run_sweep(
    sweep: Sweep,
    workdir: str | Path,
    overrides: Mapping[str, Any] | None = None,
    at_once: int | None = None,
    chosen: str = "",
    modules: Modules = (),
) -> list[Row]:
    """Trains what is not trained yet, and writes table.txt, table.md, table.csv and table.png.

    Args:
      sweep: what to vary.
      workdir: of the sweep; the same one goes on where it stopped.
      overrides: of all rows.
      at_once: how many seeds to train in one program; None: all of a row.
      chosen: a regular expression; only rows in whose name it is found are trained.
      modules: the user's own, with components that configs name (`runs.user_modules`).

    Returns:
      The rows.

    Raises:
      UserError: a config, its data or a module cannot be used, or the workdir holds another sweep.
      Stopped: a SIGTERM came while a row was trained; the same call goes on.
    """
    load_modules(modules, workdir)
    rows: list[Row] = []
    configs = sweep.configs(overrides or {}, chosen)
    for name, config in configs.items():
        _check_metrics(sweep, name, read_settings(config))
    with open_for_writing(workdir) as handle, lock_workdir(handle.folder, SWEEP):
        for number, (name, config) in enumerate(configs.items(), start=1):
            logger.info("row %d of %d: %s", number, len(configs), name)
            folder = workdir_within(handle.folder, folder_name(name))
            with lock_workdir(folder, SWEEP):
                rows.append(_row(sweep, name, config, folder, at_once or sweep.seeds, modules))
            write_tables(rows, handle.folder)
    return rows


def run_seeds(
    config: ConfigDict, workdir: str | Path, count: int, modules: Modules = ()
) -> list[Row]:
    """Trains `count` seeds of a config together, in `workdir/seed_0` and so on, and writes the
    table of this one row; else as `run_sweep`.

    Raises:
      DivergedError: no seed's loss is finite any longer, which in a sweep is a result.
    """
    with open_for_writing(workdir) as handle, lock_workdir(handle.folder, SWEEP):
        name = handle.folder.absolute().name
        sweep = Sweep(config="", rows={name: {}}, seeds=count)
        rows = [_row(sweep, name, config, handle.folder, count, modules)]
        write_tables(rows, handle.folder)
    if not rows[0].parameters:  # there is no model to count them of
        raise DivergedError(f"{workdir}: the loss of every seed is no longer finite")
    return rows


def _check_metrics(sweep: Sweep, row: str, settings: Settings) -> None:
    """Raises UserError where the sweep asks for a metric that the row's runs will not have."""
    kind = build.task_kind(settings)
    if not kind.metrics:
        return
    known = set(kind.metrics)
    if metric := settings.task.metric or kind.metric:
        with failing_as(f"task.metric {metric}, tried on one letter, fails"):
            found = METRICS[metric](["a"], ["a"])
        known |= {name for name, value in found.items() if not isinstance(value, str)}
    for name in sweep.metrics:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
            raise UserError(
                f"row {row!r}: task {settings.task.name} has no metric {name!r}; "
                f"did you mean {nearest}?"
            )


def _row(
    sweep: Sweep, name: str, config: ConfigDict, folder: Path, at_once: int, modules: Modules
) -> Row:
    """A row, from its folder where it is finished."""
    kept = folder / RESULT
    also = {each: dict(changes) for each, changes in sweep.also.items()}
    asked = {"config": config.to_dict(), "seeds": sweep.seeds, "also": also}
    if (row := kept_row(kept, name, asked)) is not None:
        return row
    with stopwatch(folder / SECONDS) as seconds:
        runs = dict(_trained(seed_configs(config, sweep.seeds), folder, at_once, modules))
        result = _measured(sweep, runs, min(at_once, sweep.seeds)) | {"seconds": seconds()}
    write_atomic(kept, json.dumps({"asked": asked, "row": result}, indent=2) + "\n")
    return Row(name, **result)


def _trained(
    configs: Mapping[str, ConfigDict], folder: Path, at_once: int, modules: Modules
) -> Iterator[tuple[Path, Run | None]]:
    """The workdir and the run of each config; None in place of one that diverged."""
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


def _measured(sweep: Sweep, runs: Mapping[Path, Run | None], at_once: int) -> dict[str, Any]:
    """The fields of a `Row`, but name and seconds."""
    trained = [run for run in runs.values() if run is not None]
    names = list(sweep.metrics or _default_metrics(trained))
    records = [read_records(path) for path in runs]
    valid = [_last(of_run, "valid") for of_run in records]
    metrics = {name: [_number(record, name) for record in valid] for name in names}
    for name, changes in sweep.also.items():
        metrics[name] = [_loss_under(run, changes) if run else None for run in runs.values()]
    speeds = [r["tokens_per_s"] for of_run in records for r in of_run if r["split"] == "train"]
    params = trained[0].params if trained else {}
    return {
        "metrics": metrics,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "tokens_per_s": statistics.median(speeds) * at_once if speeds else 0.0,
    }


def _default_metrics(runs: Sequence[Run]) -> list[str]:
    chooses = [run.task.best_by.removeprefix("-") for run in runs[:1]]
    return list(dict.fromkeys(["loss", *chooses]))


def _last(records: Sequence[Mapping[str, Any]], split: str) -> Mapping[str, Any]:
    return next((record for record in reversed(records) if record["split"] == split), {})


def _number(record: Mapping[str, Any], name: str) -> float | None:
    """A metric; None where the record has none of this name, NaN where it was not finite or the
    run left no record."""
    value = record.get(name)
    return math.nan if value is None and (name in record or not record) else value


def _loss_under(run: Run, changes: Mapping[str, Any]) -> float | None:
    """The run's loss of the validation split under another config."""
    try:
        run = run.under(changes)
    except UserError as error:
        logger.info("%s: %s", ", ".join(f"{k}={v}" for k, v in changes.items()), error)
        return None
    settings = read_settings(run.config)
    examples, mesh = open_split(settings.data, "valid"), mesh_for_inference(settings.parallel)
    evaluator = build.build_evaluator(settings, run.task, examples, settings.decode, mesh)
    return float(evaluator.loss_metrics(run.params)["loss"])
