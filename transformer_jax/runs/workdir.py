"""The workdir of a run: what it holds.

    config.json                     the whole config
    modules.json                    the user's modules that the run needs, if any (`runs.modules`)
    tokenizer/                      vocabularies
    checkpoints/                    state, data position and score of the steps that are kept
    metrics.jsonl, tensorboard/     metrics of each logged step
    predictions/                    outputs of the scored splits
    profile/                        traces, on request
    .lock                           the process that trains here (`runs.sole_writer`)

The workdir of replicas trained together holds such a workdir for each, and `together/`, with the
checkpoints of all on the way.
"""

from pathlib import Path

from transformer_jax.errors import UserError

CONFIG = "config.json"
MODULES = "modules.json"
TOKENIZER = "tokenizer"
CHECKPOINTS = "checkpoints"
PREDICTIONS = "predictions"
PROFILE = "profile"
TOGETHER = "together"


def workdir_path(workdir: str | Path) -> Path:
    """A workdir as a path; UserError for the address of a bucket."""
    if "://" in str(workdir):
        raise UserError(f"workdir {workdir} is no directory; mount the bucket as a file system")
    return Path(workdir)


def write_whole(path: Path, text: str) -> None:
    """Writes a file of UTF-8 text, whole or not at all: a kill does not tear it."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
