# SPDX-License-Identifier: Apache-2.0
"""The workdir of a run, or of a sweep: what it holds, who may write to it, its copy of a bucket.

    config.json                     the whole config
    modules.json                    names of the user's modules that the run needs, if any
    tokenizer/                      vocabularies
    checkpoints/                    state, data position and score of the steps that are kept
    reference/                      log-probabilities of the reference policy (DPO)
    metrics.jsonl, tensorboard/     metrics of each logged step
    predictions/                    outputs of the scored splits (SPLIT-STEP.jsonl), and what made
                                    them (SPLIT-STEP.json)
    profile/                        traces, on request
    .transformer_jax                the mark that this program made the workdir; it names the
                                    process that trains there

It may be an address ("s3://...", "gs://..."), of which a copy here is read or written
(`buckets.copies`). A workdir may come from anywhere, so nothing in it is read or written through a
link; the workdir itself may be a link. That of replicas trained together holds such a workdir for
each, and `together/` with their joint checkpoints.

The folder of a sweep, and of each of its rows, has a mark of its own and holds

    table.*, result.json, seconds   the measurements
    differences.*, curves.*         their figures
    verdict.json                    the verdict, if the sweep decides a claim
    search.journal                  the trials, if the sweep is a search that chooses them by scores
"""

import base64
import contextlib
import dataclasses
import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.buckets.bucket import is_address
from transformer_jax.buckets.copies import fetch_folder, working_copy, working_copy_id
from transformer_jax.buckets.mirror import MirrorLayout
from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.checkpoints.store import CheckpointConfig, Checkpoints, PrimaryCheckpoints
from transformer_jax.errors import BusyError, UserError, user_errors
from transformer_jax.logs.records import read_lines, with_losses
from transformer_jax.parallel import hosts
from transformer_jax.runtime import files

logger = logging.getLogger(__name__)

MARK = ".transformer_jax"
CONFIG = "config.json"
MODULES = "modules.json"
TOKENIZER = "tokenizer"
CHECKPOINTS = "checkpoints"
PREDICTIONS = "predictions"
REFERENCE = "reference"
PROFILE = "profile"
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
TOGETHER = "together"
WANDB = "wandb"
TRACKERS = "trackers"

RESULT = "result.json"
SECONDS = "seconds"
VERDICT = "verdict.json"
JOURNAL = "search.journal"
TABLE = "table"
DIFFERENCES = "differences"
CURVES = "curves"

_MADE_BY = {"step", "checkpoint", "average", "search", "changed", "data"}
_SECONDS_TO_APPEAR = 10  # until a file that another machine has written is visible here


@dataclasses.dataclass(frozen=True)
class WorkdirKind:
    """A kind of folder that this program writes: the file that marks it, and all others."""

    name: str
    mark: str
    written: tuple[str, ...]


RUN = WorkdirKind(
    "run",
    MARK,
    (
        *(CONFIG, MODULES, TOKENIZER, CHECKPOINTS, METRICS, TENSORBOARD, PREDICTIONS, PROFILE),
        *(TRACKERS, REFERENCE, TOGETHER),
    ),
)
SWEEP = WorkdirKind(
    "sweep",
    ".transformer_jax_sweep",
    (
        *(RESULT, SECONDS, VERDICT, JOURNAL),
        *(f"{TABLE}.{ending}" for ending in ("txt", "md", "tex", "csv", "png", "pdf", "svg")),
        *(f"{figure}.{ending}" for figure in (DIFFERENCES, CURVES) for ending in ("pdf", "svg")),
    ),
)

# Not in paths that TensorStore can write; Orbax reads what the whole path matches as a pattern.
_NOT_STORABLE = re.compile(r"[\\\0\ud800-\udfff*?\[\]]")
_STEP = r"(?:[^/]+/)*checkpoints/(?:snapshots/)?[0-9]+(?=/)"
_OLD_METRICS = f"{METRICS}.old"
# Left out of a copy to use a run: optimizer moments, TensorBoard events, traces.
_FOR_TRAINING = re.compile(rf"({_STEP}/training|(^|/){TENSORBOARD}|(^|/){PROFILE})/")


_LAYOUT = MirrorLayout(
    unit=re.compile(_STEP),
    seal=manifest.MANIFEST,
    mark=re.compile(rf"(^|/)({re.escape(RUN.mark)}|{re.escape(SWEEP.mark)})$"),
    temporary=re.compile(
        rf"(^|/)(wandb|{re.escape(files.PARTIAL)})/|\.partial$|\.orbax-checkpoint-tmp"
    ),
    damage=manifest.find_damage,
)


def workdir_path(workdir: str | Path) -> Path:
    """The path of a workdir that contains no links; of one at an address a local copy, with all
    that is needed to use the run.

    Raises:
      UserError: its name is empty, there is nothing at its address, arrays cannot be stored under
        its path, or it holds something other than files and folders.
    """
    if not str(workdir):
        raise UserError("the name of the workdir is empty; is a variable of the shell not set?")
    path = fetch_folder(workdir, lambda name: not _FOR_TRAINING.search(name), _LAYOUT)
    require_storable(path)
    _require_regular(path / WANDB)  # the wandb library makes links inside it
    for name in (MARK, *RUN.written):
        _require_regular(path / name)
        for entry in files.entries_below(path / name):
            if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
                _require_regular(Path(entry.path))
    return path


def require_storable(path: Path) -> None:
    """Raises UserError if arrays that are stored under a path could not be written or read."""
    if _NOT_STORABLE.search(str(path.absolute())):
        raise UserError(
            f"workdir {str(path.absolute())!r} has a backslash, a NUL, one of [ ] * ? or bytes "
            "that are not UTF-8 in its path: arrays cannot be stored there"
        )


def workdir_within(workdir: Path, name: str) -> Path:
    """The workdir of a replica, or of a sweep's row, in the folder `name` of another workdir."""
    _require_regular(workdir / name)
    return workdir_path(files.path_below(workdir, name))


def fetch_files(workdir: str | Path, names: Collection[str]) -> Path:
    """The workdir, or a local copy of these files and folders if it is at an address."""
    return fetch_folder(workdir, lambda name: name.split("/")[0] in names)


def _require_regular(path: Path) -> None:
    """Raises UserError if there is something other than a regular file or a folder."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # the reader reports the error
    if stat.S_ISLNK(mode):
        raise UserError(
            f"{path} is a link, and nothing in a workdir is read or written through one; replace "
            "it by what it names (the workdir itself may be a link)"
        )
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{path} is neither a file nor a folder; a run writes no such thing")


def require_own_folder(folder: Path, kind: WorkdirKind = RUN) -> None:
    """Raises UserError for a folder of another kind, one inside a run's workdir, or one that has no
    mark of this kind, nor checkpoints of a version without marks, and files that would be
    overwritten."""
    if _is_own(folder, kind):
        return
    for other in (RUN, SWEEP):
        if other is not kind and _is_own(folder, other):
            raise UserError(
                f"{folder} holds a {other.name}; choose another --workdir for a {kind.name}"
            )
    if _is_own(folder.absolute().parent, RUN):
        raise UserError(f"{folder.absolute().parent} holds a run; choose a --workdir outside of it")
    for name in dict.fromkeys((*RUN.written, *kind.written)):
        # Another process may have marked the folder since.
        if os.path.lexists(folder / name) and not _is_own(folder, kind):
            raise UserError(
                f"{folder} holds {name}, and no mark that a {kind.name} here made it; it is kept: "
                "choose a new or an empty folder as --workdir"
            )


def _is_own(folder: Path, kind: WorkdirKind) -> bool:
    if os.path.lexists(folder / kind.mark):
        return True
    if kind is RUN:
        return bool(step_folders(folder / CHECKPOINTS))
    # A sweep without a mark has results, of its rows at least, and runs up to three folders below.
    results = (f"{row}{name}" for row in ("", "*/") for name in (RESULT, SECONDS))
    if not any(any(folder.glob(pattern)) for pattern in results):
        return False
    return any(
        step_folders(checkpoints)
        for runs in ("*", "*/*", "*/*/*")
        for checkpoints in folder.glob(f"{runs}/{CHECKPOINTS}")
    )


@contextlib.contextmanager
def lock_workdir(workdir: Path, kind: WorkdirKind = RUN, *, wait: bool = False) -> Iterator[None]:
    """Locks a workdir, or the folder of another kind, for one process or job.

    The folder is created and marked if it does not exist. The lock ends with this process at the
    latest. In a job, process 0 locks it for all. With `wait` another process is waited for.

    Raises:
      BusyError: another process trains there (the message says which).
      UserError: the workdir cannot be written, or holds files of others (`require_own_folder`).
    """
    with contextlib.ExitStack() as locks:
        mark = hosts.run_on_primary(lambda: _lock(workdir, kind, locks, wait))
        hosts.require_agreement(lambda: (None, _wait_for_mark(workdir / kind.mark, mark)))
        yield


def _lock(workdir: Path, kind: WorkdirKind, locks: contextlib.ExitStack, wait: bool) -> str:
    """Marks and locks a folder; returns the content of the mark, empty if locks do not work."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        require_own_folder(workdir, kind)
        file = locks.enter_context(files.open_locked(workdir / kind.mark, wait=wait))
    except BlockingIOError as error:
        holder = files.read_regular(workdir / kind.mark).decode().strip()
        raise BusyError(
            f"{workdir}: {holder or 'another process'} is training there; "
            "wait for it, or choose another --workdir"
        ) from error
    except files.NoLocksError as error:
        logger.warning("%s cannot be locked (%s); do not start two runs there", workdir, error)
        return ""
    except OSError as error:
        raise UserError(f"cannot write to {error.filename or workdir}: {error.strerror}") from error
    content = f"{files.describe_process()}\n"
    file.truncate(0)
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
    return content


def _wait_for_mark(mark: Path, content: str) -> hosts.Fingerprint:
    """Waits for the mark that process 0 has written; UserError if another one is there."""
    deadline = time.monotonic() + _SECONDS_TO_APPEAR
    while content:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if files.read_regular(mark).decode() == content:
                break
        if time.monotonic() > deadline:
            raise UserError(
                f"{mark.parent} is not the folder that process 0 writes; all processes of a job "
                "must share the --workdir"
            )
        time.sleep(0.1)
    return {"mark of the workdir": content}


class WorkdirHandle(NamedTuple):
    """A local folder that a run is written to.

    Attributes:
      folder: the workdir, or a copy of a workdir at an address.
      is_shared: whether all processes of the job see the same folder. If not, process 0 alone
        writes the run, and the others have empty folders of their own.
    """

    folder: Path
    is_shared: bool

    def checkpoints(self, config: CheckpointConfig) -> Checkpoints:
        kind = Checkpoints if self.is_shared else PrimaryCheckpoints
        return kind(self.folder / CHECKPOINTS, config)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        with contextlib.ExitStack() as locks:
            if self.is_shared:
                locks.enter_context(lock_workdir(self.folder))
            else:
                hosts.run_on_primary(lambda: locks.enter_context(lock_workdir(self.folder)))
            yield

    def copy_from_primary(self, name: str) -> None:
        """Copies a folder of the workdir from process 0 to all others, unless they share it."""
        if self.is_shared:
            return

        def read() -> dict[str, str]:
            contents = {}
            for path in (self.folder / name).rglob("*"):
                if path.is_file():
                    content = base64.b64encode(path.read_bytes()).decode()
                    contents[path.relative_to(self.folder).as_posix()] = content
            return contents

        for path, content in hosts.run_on_primary(read).items():
            file = files.path_below(self.folder, path)
            if not hosts.is_primary():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(base64.b64decode(content))


@contextlib.contextmanager
def open_for_writing(workdir: str | Path) -> Iterator[WorkdirHandle]:
    """Opens a workdir for writing a run while the block runs.

    For an address it is a copy with all that is there; changes are uploaded. In a job process 0
    uploads them; the processes that see its copy use it too.
    """
    if not is_address(workdir):
        yield WorkdirHandle(workdir_path(workdir), is_shared=True)
        return
    with contextlib.ExitStack() as copies:

        def open_copy() -> tuple[str, str]:
            folder = copies.enter_context(working_copy(str(workdir), _LAYOUT))
            for config in folder.rglob(CONFIG):
                checkpoints = config.parent / CHECKPOINTS
                checkpoints.mkdir(exist_ok=True)  # a bucket has no empty folders
                # The machine was lost before it uploaded a checkpoint: the run starts again. (On a
                # disk, records without checkpoints mean that these were lost.)
                if not step_folders(checkpoints):
                    set_records_aside(config.parent)
            return str(workdir_path(folder)), working_copy_id(str(workdir))

        path, name = hosts.run_on_primary(open_copy)
        folder = Path(path)
        is_shared = all(hosts.gather(working_copy_id(str(workdir)) == name and folder.is_dir()))
        if not is_shared:
            logger.info(
                "%s: the machines share no copy of it; the first one keeps the run", workdir
            )
        if not (is_shared or hosts.is_primary()):
            folder = Path(copies.enter_context(tempfile.TemporaryDirectory()), folder.name)
            folder.mkdir()
        yield WorkdirHandle(folder, is_shared)


def set_records_aside(workdir: Path) -> None:
    """Renames the records of a run that starts again."""
    with contextlib.suppress(FileNotFoundError):
        (workdir / METRICS).replace(workdir / _OLD_METRICS)


def restore_records(workdir: Path) -> None:
    """Undoes `set_records_aside`, unless the run has other records by now: a replica's workdir in
    the copy of a bucket has no checkpoint of its own."""
    if not (workdir / METRICS).exists():
        with contextlib.suppress(FileNotFoundError):
            (workdir / _OLD_METRICS).replace(workdir / METRICS)


def seed_workdirs(workdir: Path) -> list[Path]:
    """Workdirs of the seeds of a run or of a sweep's row; of a run without seeds, its own."""
    if (workdir / METRICS).exists():
        return [workdir]
    folders = [
        metrics.parent
        for place in ("", "group_*/", "from_*/", "from_*/group_*/")
        for metrics in workdir.glob(f"{place}seed_*/{METRICS}")
    ]
    # By length first: seed_10 comes after seed_9.
    return sorted(folders, key=lambda path: (len(path.name), path.name)) or [workdir]


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """Records of a run's metrics.jsonl (`records.with_losses`); raises UserError if there are
    none."""
    objects = _read_objects(workdir, METRICS, "metrics")
    train: Mapping[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, AttributeError):
        train = files.parse_json(files.read_regular(workdir / CONFIG)).get("train", {})
    written = [record for record in objects if isinstance(record.get("step"), int)]
    records = [with_losses(record, train) for record in written]
    if not records:
        raise UserError(f"{workdir} has no metrics to draw: {METRICS} holds no record yet")
    if records != written:
        logger.info(
            "%s: the loss of an earlier version, which has label smoothing or other terms, is read "
            "as train_loss",
            workdir / METRICS,
        )
    return records


class Predictions(NamedTuple):
    """Examples of a split with their outputs, of the last step that was scored.

    Attributes:
      made_by: what made the outputs (`evaluate.outputs_made_by`); empty if no file says it.
    """

    step: int
    records: list[dict[str, Any]]
    made_by: Mapping[str, Any]


def read_predictions(workdir: Path, split: str) -> Predictions:
    """Reads the outputs of a split; UserError if there are none."""
    file_of_step = re.compile(rf"{re.escape(split)}-([0-9]+)\.jsonl")
    names = (path.name for path in (workdir / PREDICTIONS).glob("*.jsonl"))
    steps = [int(match[1]) for match in map(file_of_step.fullmatch, names) if match]
    if not steps:
        message = f"{workdir} has no predictions of {split}; run evaluate with --split={split}"
        raise UserError(message)
    step = max(steps)
    name = f"{PREDICTIONS}/{split}-{step}"
    records = _read_objects(workdir, f"{name}.jsonl", "predictions")
    made_by = {}
    with contextlib.suppress(OSError, ValueError, RecursionError):
        made_by = files.parse_json(files.read_regular(workdir / f"{name}.json"))
    is_whole = isinstance(made_by, dict) and made_by.keys() >= _MADE_BY
    return Predictions(step, records, made_by if is_whole else {})


def _read_objects(workdir: Path, name: str, content: str) -> list[dict[str, Any]]:
    """JSON objects of a file of lines, without lines that a kill has torn."""
    objects = []
    with user_errors(f"{workdir} has no {content} to draw: {name}", kinds=OSError):
        for line in read_lines(workdir / name):
            with contextlib.suppress(ValueError, RecursionError):
                objects.append(files.parse_json(line))
    return [item for item in objects if isinstance(item, dict)]
