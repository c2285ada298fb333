# SPDX-License-Identifier: Apache-2.0
"""Results of the rows of sweeps: their files, what they were trained with, and merged tables."""

import contextlib
import csv
import dataclasses
import io
import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.buckets.bucket import is_address
from transformer_jax.buckets.copies import fetch_folder
from transformer_jax.errors import UserError, escape_controls
from transformer_jax.lab.pictures import Records
from transformer_jax.lab.sweeps.shared_folder import SweepFolder, folder_name
from transformer_jax.lab.sweeps.tables import Row, Rows
from transformer_jax.runs.config import PLACE_OF_DATA, VALIDATION_FIELD, flatten, read_settings
from transformer_jax.runs.provenance import TRAINING_DATA, VALIDATION_DATA
from transformer_jax.runs.settings import Origin
from transformer_jax.runs.workdir import (
    METRICS,
    RESULT,
    TABLE,
    read_metrics,
    seed_workdirs,
    workdir_path,
)
from transformer_jax.runtime.files import parse_json, read_regular

PLACES = ("data.dir", "data.cache_dir", "data.num_workers")
"""Config fields that say where data are read and how, not which."""
_MOST_NAMED = 3  # fields that a message names

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Result:
    """A finished row, and what it was trained with.

    Attributes:
      row: its measurements.
      fields: {"section.field": value}, "also" and "until" as of `Sweep.asked`, and digests of its
        data; fields that its version lacked have their defaults.
      place: its file.
    """

    row: Row
    fields: Mapping[str, Any]
    place: str


def encoded_result(row: Row, asked: Mapping[str, Any]) -> str:
    """Content of the file of a result."""
    fields = {field: value for field, value in dataclasses.asdict(row).items() if field != "name"}
    return json.dumps({"asked": {**asked, "seeds": row.seeds}, "row": fields}, indent=2) + "\n"


def result_of(folder: SweepFolder, name: str, asked: Mapping[str, Any] | None) -> Row | None:
    """The finished row of this name in a sweep's folder, whichever process trained it; None if it
    is not finished, or is not the one `asked` for."""
    result = _result(folder.result(name), name, "", "")
    is_other = result and asked and _differences(result.fields, _fields(asked, ""))
    return None if result is None or is_other else result.row


def saved_row(path: Path, name: str, asked: Mapping[str, Any]) -> Row | None:
    """The finished row in a file, with all its seeds.

    None if there is no file, or the row is a trial that now trains to another step; or, with a
    warning, if it is damaged or of another config.
    """
    result = _result(_content(path), name, str(path), "it is measured again")
    if result is None or result.fields["until"] != asked.get("until"):
        return None
    reason = _differences(result.fields, _fields(asked, ""))
    if reason:
        logger.warning("%s is the result of another sweep: %s; it is measured again", path, reason)
    return None if reason else result.row


def is_of_other_config(path: Path, asked: Mapping[str, Any]) -> bool:
    """Returns True if a file is the result of a row with other fields than `asked`; the places of
    data do not count."""
    result = _result(_content(path), "", str(path), "")
    fields = _fields(asked, "")
    before = {} if result is None else {name: result.fields.get(name) for name in fields}
    return result is not None and bool(_differing_content(before, fields, PLACES))


def warn_of_other_rows(folder: SweepFolder, names: Collection[str]) -> None:
    """Warns if the folder's table has rows that are not among `names`, of another sweep or of an
    earlier form of this one: the tables will leave them out."""
    others = [name for name in _table_names(folder.read(f"{TABLE}.csv")) if name not in names]
    finished = [name for name in others if folder.result(name) is not None]
    if finished:
        logger.warning(
            "%s also holds rows that are not in this sweep: %s; they are kept and left out of the "
            "tables (for one table of both, give each sweep a --workdir and merge with `table`)",
            folder,
            escape_controls(", ".join(finished)),
        )


def joined(saved: Row, added: Row) -> Row:
    """A finished row with more seeds, whose time includes the first ones. Its speed remains."""
    metrics = {}
    for name in dict.fromkeys((*saved.metrics, *added.metrics)):
        first = saved.metrics.get(name, [None] * saved.seeds)
        metrics[name] = [*first, *added.metrics.get(name, [None] * added.seeds)]
    parameters = saved.parameters or added.parameters  # 0 if all seeds diverged
    return dataclasses.replace(saved, metrics=metrics, parameters=parameters, seconds=added.seconds)


def saved_rows(workdir: Path) -> list[Row]:
    """Finished rows of a sweep, in the order of its table; none if the folder holds no sweep."""
    return [result.row for result in _results(workdir)]


def seed_folders(row: Path) -> dict[str, Path]:
    """The workdirs of a row's seeds that have records, {"seed_N": path}, in the order of seeds."""
    return {path.name: path for path in seed_workdirs(row) if path != row}


def seed_records(row: Path) -> dict[str, Records]:
    """The records of each seed of a row, {"seed_N": records}."""
    records: dict[str, Records] = {}
    for seed, folder in seed_folders(row).items():
        try:
            records[seed] = read_metrics(folder)
        except UserError as error:
            logger.warning("%s", error)
    return records


def row_folders(workdir: Path) -> dict[str, Path]:
    """The folders of the rows in the table of a sweep, or of `train --seeds`, by their names."""
    names = _table_names(_content(workdir / f"{TABLE}.csv"))
    folders = {name: workdir / folder_name(name) for name in names}
    if len(names) == 1 and not (folders[names[0]] / RESULT).exists():
        return {names[0]: workdir}  # of `train --seeds`
    return folders


def last_validation(records: Records) -> Mapping[str, Any]:
    """The last validation record of a run; empty if it has none."""
    for record in reversed(records):
        if record["split"] == "valid":
            return record
    return {}


def readable_folder(workdir: str | Path) -> Path:
    """The folder of a sweep, or a copy of its results and records if it is in a bucket."""
    if is_address(workdir):
        wanted = (RESULT, METRICS, f"{TABLE}.csv")
        return fetch_folder(workdir, lambda name: name.rpartition("/")[2] in wanted)
    return workdir_path(workdir)


def merge_tables(*workdirs: str | Path) -> Rows:
    """The finished rows of several sweeps in one table; the first row of the first is the base.

    Of rows of one name and config, the first with the most seeds counts. Works on the folder of
    `train --seeds`, too.

    Args:
      *workdirs: folders or addresses of sweeps.

    Raises:
      UserError: a folder has no finished row; rows of one name differ in their config; sweeps were
        validated on other data.

    Example:
      >>> merge_tables("runs/norms", "runs/more_norms").table()
    """
    if not workdirs:
        raise UserError("table: give at least one folder of a sweep")
    results: list[Result] = []
    validated = {}
    for workdir in workdirs:
        of_sweep = _results(readable_folder(workdir))
        if not of_sweep:
            raise UserError(f"table: {workdir} holds no finished row of a sweep")
        validated[of_sweep[0].place] = of_sweep[0].fields
        results += of_sweep
    require_same_validation("table", validated)
    merged: dict[str, Result] = {}
    for result in results:
        first = merged.setdefault(result.row.name, result)
        different = _differences(first.fields, result.fields, (*PLACES, "also"))
        if different:
            raise UserError(
                f"table: row {first.row.name!r} has different configs in {first.place} and in "
                f"{result.place}: {different}; leave one folder out, or rename the row and train "
                "it again"
            )
        if result.row.seeds > first.row.seeds:
            merged[result.row.name] = result
    return Rows(result.row for result in merged.values())


def require_same_validation(verb: str, of_runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises UserError unless runs with these fields and digests, by their names, were validated on
    the same examples."""
    (first_name, first), *others = of_runs.items()
    for other_name, other in others:
        for name, (value, other_value) in _differing_content(first, other).items():
            if VALIDATION_FIELD.fullmatch(name) or name == VALIDATION_DATA:
                raise UserError(
                    f"{verb}: {first_name} and {other_name} were not validated on the same "
                    f"examples: {name} is {value!r} and {other_value!r}"
                )


def differing(*of_runs: Mapping[str, Any], ignored: Collection[str]) -> dict[str, tuple[Any, ...]]:
    """Names whose values differ among runs, with the value of each; None where a run has none."""
    values_of = {}
    for name in dict.fromkeys(name for of_run in of_runs for name in of_run):
        values = tuple(of_run.get(name) for of_run in of_runs)
        if name not in ignored and any(value != values[0] for value in values):
            values_of[name] = values
    return values_of


def _differing_content(
    first: Mapping[str, Any], second: Mapping[str, Any], ignored: Collection[str] = ()
) -> dict[str, tuple[Any, ...]]:
    """`differing`; where both have digests of their data, these count, and the fields that say
    where data are do not."""
    digests = (TRAINING_DATA, VALIDATION_DATA)
    if any(name not in fields for name in digests for fields in (first, second)):
        return differing(first, second, ignored=(*ignored, *digests))
    fields = differing(first, second, ignored=ignored)
    return {name: values for name, values in fields.items() if not PLACE_OF_DATA.fullmatch(name)}


def _differences(
    first: Mapping[str, Any], second: Mapping[str, Any], ignored: Collection[str] = ()
) -> str:
    """Names and values of the fields that differ; empty if none does."""
    contents = _differing_content(first, second, ignored)
    different = [f"{name} is {a!r} and {b!r}" for name, (a, b) in contents.items()]
    more = len(different) - _MOST_NAMED
    shown = ", ".join(different[:_MOST_NAMED])
    return escape_controls(shown + (f", and {more} more" if more > 0 else ""))


def _results(workdir: Path) -> list[Result]:
    """Finished rows of a sweep, or of `train --seeds`, in the order of the table."""
    results = []
    for name, folder in row_folders(workdir).items():
        path = folder / RESULT
        results.append(_result(_content(path), name, str(path), "its row is left out"))
    return [result for result in results if result is not None]


def _content(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except OSError:
        return None


def _table_names(table: bytes | None) -> list[str]:
    """Names of the rows of a table.csv; none if it is missing or damaged."""
    try:
        lines = list(csv.DictReader(io.StringIO((table or b"").decode())))
    except (ValueError, csv.Error):
        return []
    names = [line.get("row") for line in lines]
    return [name for name in names if name and folder_name(name).strip(".")]


def _result(content: bytes | None, name: str, place: str, consequence: str) -> Result | None:
    """The result of a row; None if there is none, or, with a warning of the consequence if any, it
    is damaged."""
    if content is None:
        return None
    try:
        tree = parse_json(content)
        return Result(Row(name, **tree["row"]), _fields(tree["asked"], place), place)
    except (ValueError, TypeError, KeyError, AttributeError):
        if consequence:
            logger.warning("%s is damaged or of an earlier version; %s", place, consequence)
        return None


def _fields(asked: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The identity of a result as `Result.fields`."""
    others = {"also": asked["also"], "until": asked.get("until"), **asked.get("data", {})}
    config = flatten(asked["config"])
    with contextlib.suppress(UserError):  # it has fields of another version, or of user modules
        values = read_settings(asked["config"], {}, Origin("loaded run", place)).values
        config = json.loads(json.dumps(values))  # lists for tuples, as a file has them
    return {**config, **others}
