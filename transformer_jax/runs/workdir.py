"""The workdir of a run: what it holds.

    config.json                     the whole config
    modules.json                    names of the user's modules that the run needs, if any
    tokenizer/                      vocabularies
    checkpoints/                    state, data position and score of the steps that are kept
    reference/                      what a run of preferences is compared with, log-probabilities
    metrics.jsonl, tensorboard/     metrics of each logged step
    predictions/                    outputs of the scored splits
    profile/                        traces, on request
    .transformer_jax                the mark that this program made the workdir, with the process
                                    that trains here (`runs.workdir`)

The workdir may be an address ("s3://...", "gs://..."), which then holds the same files; a copy of
them on this machine is read or written (`buckets.copies`).

All of these are regular files and folders: a workdir may come from anywhere, and who loads it or
trains in it reads and writes nothing through a link. The workdir itself may be a link.

The workdir of replicas trained together holds such a workdir for each, and `together/`, with the
checkpoints of all on the way.

The folder of a sweep, and of each of its rows, has a mark of its own and holds

    table.*, result.json, seconds   what was measured
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
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from transformer_jax.buckets.bucket import is_address
from transformer_jax.buckets.copies import fetch_folder, working_copy, working_copy_id
from transformer_jax.buckets.mirror import MirrorLayout
from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.config import CheckpointConfig
from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.checkpoints.store import Checkpoints, PrimaryCheckpoints
from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts
from transformer_jax.parallel.hosts import Fingerprint
from transformer_jax.runtime import processes
from transformer_jax.runtime.files import (
    SETTINGS_BYTES,
    NoLocksError,
    entries_below,
    open_locked,
    path_below,
    read_regular,
)

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

RESULT = "result.json"
SECONDS = "seconds"
TABLE = "table"


@dataclasses.dataclass(frozen=True)
class WorkdirKind:
    """What this program may make of a folder.

    Attributes:
      name: for messages.
      mark: the file that says so.
      written: all else that is written there.
    """

    name: str
    mark: str
    written: tuple[str, ...]


RUN = WorkdirKind(
    "run",
    MARK,
    (
        *(CONFIG, MODULES, TOKENIZER, CHECKPOINTS, METRICS, TENSORBOARD, PREDICTIONS, PROFILE),
        REFERENCE,
        TOGETHER,
    ),
)
SWEEP = WorkdirKind(
    "sweep",
    ".transformer_jax_sweep",
    (RESULT, SECONDS, *(f"{TABLE}.{ending}" for ending in ("txt", "md", "csv", "png"))),
)


_STEP = r"(?:[^/]+/)*checkpoints/(?:snapshots/)?[0-9]+(?=/)"
BUCKET = MirrorLayout(
    unit=re.compile(_STEP),
    seal=manifest.MANIFEST,
    members=manifest.read_entries,
    temporary=re.compile(r"(^|/)wandb/|\.partial$|\.orbax-checkpoint-tmp"),
    damage=manifest.damage,
)
"""How a workdir lies at an address."""
_FOR_TRAINING = re.compile(rf"({_STEP}/training|(^|/){TENSORBOARD}|(^|/){PROFILE})/")


def workdir_path(workdir: str | Path) -> Path:
    """A workdir as a path, once it is known that a run here reads and writes nothing outside; of
    one at an address, a copy of what is needed to use its run.

    Raises:
      UserError: it has an empty name, there is nothing at its address, it has a path under which no
        array can be stored, or what a run reads and writes is no regular file or folder (it is
        named).
    """
    if not str(workdir):
        raise UserError("the name of the workdir is empty; is a variable of the shell not set?")
    if is_address(workdir):
        workdir = fetch_folder(str(workdir), lambda name: not _FOR_TRAINING.search(name), BUCKET)
    _require_storable(Path(workdir).absolute())
    for name in (MARK, *RUN.written):
        _require_regular(Path(workdir, name))
        for entry in entries_below(Path(workdir, name)):
            if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
                _require_regular(Path(entry.path))
    _require_regular(Path(workdir, WANDB))  # in which its own library sets links
    return Path(workdir)


def with_files(workdir: str | Path, names: Collection[str]) -> Path:
    """A workdir of which these files alone are read; of one at an address, a copy of them.

    Raises:
      UserError: there is nothing at the address, or it cannot be read.
    """
    return fetch_folder(str(workdir), names.__contains__) if is_address(workdir) else Path(workdir)


def _require_storable(path: Path) -> None:
    """Raises UserError for what the library that stores arrays (TensorStore) cannot take in a path,
    or takes for something else."""
    for what, has in (
        ("a NUL", "\0" in str(path)),
        ("a backslash", "\\" in str(path)),
        ("bytes that are not UTF-8", any("\ud800" <= char <= "\udfff" for char in str(path))),
    ):
        if has:
            raise UserError(f"workdir {str(path)!r} has {what} in its path: no array goes there")


def workdir_within(workdir: Path, name: str) -> Path:
    """The workdir of a replica, or of a sweep's row, in the folder `name` of another workdir; as
    `workdir_path`, and UserError where that folder is a link or `name` leads elsewhere."""
    _require_regular(workdir / name)
    return workdir_path(path_below(workdir, name))


def _require_regular(path: Path) -> None:
    """Raises UserError where there is something that is neither a regular file nor a folder."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # who reads it says why that cannot be
    if stat.S_ISLNK(mode):
        raise UserError(
            f"{path} is a link, and nothing in a workdir is read or written through one; put there "
            "what it names (the workdir itself may be a link)"
        )
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{path} is neither a file nor a folder; a run writes no such thing")


def require_own(folder: Path, kind: WorkdirKind = RUN) -> None:
    """Raises UserError where a folder without the mark of its kind holds what would be overwritten,
    or is one of another kind, or lies within a run's workdir.

    What versions that set no marks have made is known by its checkpoints.
    """
    if _is_own(folder, kind):
        return
    for other in (RUN, SWEEP):
        if _is_own(folder, other):
            raise UserError(
                f"{folder} holds a {other.name}; choose another --workdir for a {kind.name}"
            )
    if _is_own(folder.absolute().parent, RUN):
        raise UserError(f"{folder.absolute().parent} holds a run; choose a --workdir outside of it")
    for name in dict.fromkeys((*RUN.written, *kind.written)):
        if os.path.lexists(folder / name):
            raise UserError(
                f"{folder} holds {name}, and no mark that a {kind.name} here made it; it is kept: "
                "choose a new or an empty folder as --workdir"
            )


def _is_own(folder: Path, kind: WorkdirKind) -> bool:
    if os.path.lexists(folder / kind.mark):
        return True
    if kind is RUN:
        return bool(step_folders(folder / CHECKPOINTS))
    measured = (f"{row}{name}" for row in ("", "*/") for name in (RESULT, SECONDS))
    trained = (f"{runs}/{CHECKPOINTS}" for runs in ("*", "*/*", "*/*/*"))
    return any(any(folder.glob(pattern)) for pattern in measured) and any(
        step_folders(checkpoints) for pattern in trained for checkpoints in folder.glob(pattern)
    )


# FOLDED runs.sole_writer: A workdir is written by one process, or one job, at a time.


_SECONDS_TO_SEE = 10  # a file that another machine has written

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def sole_writer(workdir: Path, kind: WorkdirKind = RUN) -> Iterator[None]:
    """Locks a workdir, or the folder of another kind, which is made and marked if absent; the lock
    ends with this process at the latest.

    Of a job's processes the first one locks it for all.

    Raises:
      UserError: another process trains there (the message says which), or the workdir cannot be
        written, or it holds files of others (`workdir.require_own`).
    """
    with contextlib.ExitStack() as held:
        told = hosts.run_on_primary(lambda: _lock(workdir, kind, held))
        hosts.require_agreement(lambda: (None, _seen(workdir / kind.mark, told)))
        yield


def _seen(mark: Path, told: str) -> Fingerprint:
    """What a mark says, in this process as in process 0, which has written it.

    Raises:
      UserError: it says something else here.
    """
    deadline = time.monotonic() + _SECONDS_TO_SEE
    while told:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if read_regular(mark, SETTINGS_BYTES).decode() == told:
                break
        if time.monotonic() > deadline:
            raise UserError(
                f"{mark.parent} is not the folder that process 0 writes; all processes of a job "
                "must share the --workdir"
            )
        time.sleep(0.1)
    return {"mark of the workdir": told}


def _lock(workdir: Path, kind: WorkdirKind, held: contextlib.ExitStack) -> str:
    """Marks and locks a folder; returns what its mark says, empty where it cannot be locked."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        require_own(workdir, kind)
        file = held.enter_context(open_locked(workdir / kind.mark))
    except BlockingIOError as error:
        holder = read_regular(workdir / kind.mark, SETTINGS_BYTES).decode().strip()
        raise UserError(
            f"{workdir}: {holder or 'another process'} is training there; "
            "wait for it, or choose another --workdir"
        ) from error
    except NoLocksError as error:
        logger.warning("%s cannot be locked (%s); do not start two runs there", workdir, error)
        return ""
    except OSError as error:
        raise UserError(f"cannot write to {error.filename or workdir}: {error.strerror}") from error
    told = f"{processes.describe_process()}\n"
    file.truncate(0)
    file.write(told)
    file.flush()
    os.fsync(file.fileno())
    return told


# FOLDED runs.writable: The folder that a run is written to: its workdir; or, of one at an address,
# a copy of it.


class WorkdirHandle(NamedTuple):
    """Where a run is written.

    Attributes:
      folder: of this process.
      shared: whether it is the same folder in all processes of the job; else process 0 alone keeps
        the run, and the others have empty folders of their own.
    """

    folder: Path
    shared: bool

    def checkpoints(self, config: CheckpointConfig) -> Checkpoints:
        """Those of the run."""
        kind = Checkpoints if self.shared else PrimaryCheckpoints
        return kind(self.folder / CHECKPOINTS, config)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """As `sole_writer`, of the folder where the run is kept."""
        with contextlib.ExitStack() as held:
            if self.shared:
                held.enter_context(sole_writer(self.folder))
            else:
                hosts.run_on_primary(lambda: held.enter_context(sole_writer(self.folder)))
            yield

    def bring(self, name: str) -> None:
        """Gives all processes the files that process 0 has in a folder of the workdir."""
        if self.shared:
            return
        there = hosts.run_on_primary(lambda: _contents(self.folder, name))
        for path, content in there.items():
            file = path_below(self.folder, path)
            if not hosts.is_primary():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(base64.b64decode(content))


@contextlib.contextmanager
def writable(workdir: str | Path) -> Iterator[WorkdirHandle]:
    """As `workdir_path`, to write to while the block runs: of a workdir at an address, a copy with
    all that is there; what changes in it is brought to the address.

    In a job of many processes the first one brings it. Where all see its copy they use it.

    Raises:
      UserError: as `workdir_path`, or as `copies.working_copy`.
    """
    if not is_address(workdir):
        yield WorkdirHandle(workdir_path(workdir), shared=True)
        return
    with contextlib.ExitStack() as held:

        def opened() -> tuple[str, str]:
            folder = held.enter_context(working_copy(str(workdir), BUCKET))
            for config in folder.rglob(CONFIG):
                _begin_anew_without_checkpoint(config.parent)
            return str(workdir_path(folder)), working_copy_id(str(workdir))

        path, name = hosts.run_on_primary(opened)
        folder = Path(path)
        shared = all(hosts.gather(working_copy_id(str(workdir)) == name and folder.is_dir()))
        if not shared:
            logger.info(
                "%s: the machines share no copy of it; the first one keeps the run", workdir
            )
        if not (shared or hosts.is_primary()):
            folder = Path(held.enter_context(tempfile.TemporaryDirectory()), folder.name)
            folder.mkdir()
        yield WorkdirHandle(folder, shared)


def _begin_anew_without_checkpoint(copy: Path) -> None:
    """Sets the records aside of a run whose machine was lost before any checkpoint had come to the
    bucket. (On a disk, records without checkpoints mean that these have been lost.)"""
    checkpoints, records = copy / CHECKPOINTS, copy / METRICS
    checkpoints.mkdir(exist_ok=True)  # a bucket has no empty folders
    if records.exists() and not step_folders(checkpoints):
        records.replace(records.with_name(f"{METRICS}.old"))


def _contents(folder: Path, name: str) -> dict[str, str]:
    """The files in `folder/name`, in base64, by their paths in `folder`."""
    return {
        path.relative_to(folder).as_posix(): base64.b64encode(path.read_bytes()).decode()
        for path in (folder / name).rglob("*")
        if path.is_file()
    }
