"""The workdir of a run: what it holds.

    config.json                     the whole config
    modules.json                    the user's modules that the run needs, if any (`runs.modules`)
    tokenizer/                      vocabularies
    checkpoints/                    state, data position and score of the steps that are kept
    reference/                      what a run of preferences is compared with, log-probabilities
    metrics.jsonl, tensorboard/     metrics of each logged step
    predictions/                    outputs of the scored splits
    profile/                        traces, on request
    .transformer_jax                the mark that this program made the workdir, with the process
                                    that trains here (`runs.sole_writer`)

The workdir may be an address ("s3://...", "gs://..."), which then holds the same files; a copy of
them on this machine is read or written (`buckets.copies`).

All of these are regular files and folders: a workdir may come from anywhere, and who loads it or
trains in it reads and writes nothing through a link. The workdir itself may be a link.

The workdir of replicas trained together holds such a workdir for each, and `together/`, with the
checkpoints of all on the way.

The folder of a sweep, and of each of its rows, has a mark of its own and holds

    table.*, result.json, seconds   what was measured
"""

import dataclasses
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path

from transformer_jax.buckets.addresses import is_address
from transformer_jax.buckets.copies import fetched
from transformer_jax.buckets.layout import Layout
from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.errors import UserError
from transformer_jax.runtime.files import everything_below, path_below

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
class Kind:
    """What this program may make of a folder.

    Attributes:
      name: for messages.
      mark: the file that says so.
      written: all else that is written there.
    """

    name: str
    mark: str
    written: tuple[str, ...]


RUN = Kind(
    "run",
    MARK,
    (
        *(CONFIG, MODULES, TOKENIZER, CHECKPOINTS, METRICS, TENSORBOARD, PREDICTIONS, PROFILE),
        REFERENCE,
        TOGETHER,
    ),
)
SWEEP = Kind(
    "sweep",
    ".transformer_jax_sweep",
    (RESULT, SECONDS, *(f"{TABLE}.{ending}" for ending in ("txt", "md", "csv", "png"))),
)


_STEP = r"(?:[^/]+/)*checkpoints/(?:snapshots/)?[0-9]+(?=/)"
BUCKET = Layout(
    unit=re.compile(_STEP),
    seal=manifest.MANIFEST,
    listed=manifest.read_entries,
    passing=re.compile(r"(^|/)wandb/|\.partial$|\.orbax-checkpoint-tmp"),
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
        workdir = fetched(str(workdir), lambda name: not _FOR_TRAINING.search(name), BUCKET)
    _require_storable(Path(workdir).absolute())
    for name in (MARK, *RUN.written):
        _require_regular(Path(workdir, name))
        for entry in everything_below(Path(workdir, name)):
            if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
                _require_regular(Path(entry.path))
    _require_regular(Path(workdir, WANDB))  # in which its own library sets links
    return Path(workdir)


def with_files(workdir: str | Path, names: Collection[str]) -> Path:
    """A workdir of which these files alone are read; of one at an address, a copy of them.

    Raises:
      UserError: there is nothing at the address, or it cannot be read.
    """
    return fetched(str(workdir), names.__contains__) if is_address(workdir) else Path(workdir)


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


def require_own(folder: Path, kind: Kind = RUN) -> None:
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


def _is_own(folder: Path, kind: Kind) -> bool:
    if os.path.lexists(folder / kind.mark):
        return True
    if kind is RUN:
        return bool(step_folders(folder / CHECKPOINTS))
    measured = (f"{row}{name}" for row in ("", "*/") for name in (RESULT, SECONDS))
    trained = (f"{runs}/{CHECKPOINTS}" for runs in ("*", "*/*", "*/*/*"))
    return any(any(folder.glob(pattern)) for pattern in measured) and any(
        step_folders(checkpoints) for pattern in trained for checkpoints in folder.glob(pattern)
    )
