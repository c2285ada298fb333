"""The workdir of a run: what it holds.

    config.json                     the whole config
    modules.json                    the user's modules that the run needs, if any (`runs.modules`)
    tokenizer/                      vocabularies
    checkpoints/                    state, data position and score of the steps that are kept
    metrics.jsonl, tensorboard/     metrics of each logged step
    predictions/                    outputs of the scored splits
    profile/                        traces, on request
    .transformer_jax                the mark that this program made the workdir, with the process
                                    that trains here (`runs.sole_writer`)

The workdir of replicas trained together holds such a workdir for each, and `together/`, with the
checkpoints of all on the way.
"""

import os
from pathlib import Path

from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.errors import UserError

MARK = ".transformer_jax"
CONFIG = "config.json"
MODULES = "modules.json"
TOKENIZER = "tokenizer"
CHECKPOINTS = "checkpoints"
PREDICTIONS = "predictions"
PROFILE = "profile"
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
TOGETHER = "together"

_WRITTEN = (
    CONFIG,
    MODULES,
    TOKENIZER,
    CHECKPOINTS,
    METRICS,
    TENSORBOARD,
    PREDICTIONS,
    PROFILE,
    TOGETHER,
)


def workdir_path(workdir: str | Path) -> Path:
    """A workdir as a path; UserError for the address of a bucket and for an empty name."""
    if not str(workdir):
        raise UserError("the name of the workdir is empty; is a variable of the shell not set?")
    if "://" in str(workdir):
        raise UserError(f"workdir {workdir} is no directory; mount the bucket as a file system")
    return Path(workdir)


def require_own(workdir: Path) -> None:
    """Raises UserError where a workdir without the mark holds what a run would overwrite.

    Runs of versions that set no mark are known by their checkpoints.
    """
    if os.path.lexists(workdir / MARK) or step_folders(workdir / CHECKPOINTS):
        return
    for name in _WRITTEN:
        if os.path.lexists(workdir / name):
            raise UserError(
                f"{workdir} holds {name}, and no mark that a run here made it; it is kept: "
                "choose a new or an empty folder as --workdir"
            )
