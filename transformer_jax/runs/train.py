"""Training a config in a workdir, and loading the run that a workdir holds."""

import shutil
from pathlib import Path

import jax
from ml_collections import ConfigDict

from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts, rules
from transformer_jax.runs import build
from transformer_jax.runs.config import check_same_run, load_json, read_settings, save_json
from transformer_jax.runs.launch import OneRun, train_plan
from transformer_jax.runs.run import Run
from transformer_jax.runs.sole_writer import sole_writer
from transformer_jax.runtime.compilation_cache import use_compilation_cache
from transformer_jax.runtime.host_memory import keep_freed_memory
from transformer_jax.tokenization import load_tokenizers


def train(config: ConfigDict, workdir: str | Path) -> Run:
    """Trains a config in a workdir, or goes on from its last checkpoint.

    In a job of many processes each calls this, with a workdir that they share.

    Raises:
      UserError: the config or its data cannot be used, the workdir holds another run, or the loss
        is no longer finite.
    """
    keep_freed_memory()
    use_compilation_cache()
    settings, workdir = read_settings(config), workdir_path(workdir)
    examples = open_split(settings.data, "train")
    checkpoints = Checkpoints(workdir / "checkpoints", settings.checkpoint)
    with sole_writer(workdir), checkpoints:
        hosts.from_primary(lambda: prepare(config, workdir, checkpoints, examples))
        tokenizers = load_tokenizers(workdir / "tokenizer")
        task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
        state = train_plan(OneRun(settings, workdir, task, examples), checkpoints)
    return Run(config, workdir, task, state.params, int(state.step))


def workdir_path(workdir: str | Path) -> Path:
    """A workdir as a path; UserError for the address of a bucket."""
    if "://" in str(workdir):
        raise UserError(f"workdir {workdir} is no directory; mount the bucket as a file system")
    return Path(workdir)


def prepare(config: ConfigDict, workdir: Path, checkpoints: Checkpoints, examples) -> None:
    """Puts config and tokenizer into the workdir, unless it holds another run."""
    kept, tokenizer = workdir / "config.json", workdir / "tokenizer"
    if checkpoints.latest_step() is not None:
        check_same_run(config, load_json(kept), workdir)
    else:
        # Nothing to go on from: what is there is of a start that failed, with any config.
        shutil.rmtree(tokenizer, ignore_errors=True)
    build.build_tokenizers(read_settings(config), tokenizer, examples)
    save_json(config, kept)


def load(workdir: str | Path, checkpoint: str | int = "latest", average: int | None = None) -> Run:
    """Loads a run: nothing in the workdir is code, and nothing of it is executed.

    Args:
      workdir: of a run with a checkpoint.
      checkpoint: "latest", "best" or a step.
      average: the mean of so many snapshots of the parameters, up to that checkpoint.

    Raises:
      UserError: there is no such run or checkpoint, or it is damaged.
    """
    keep_freed_memory()
    use_compilation_cache()
    workdir = workdir_path(workdir)
    if (workdir / "together").is_dir():
        names = {path.parent.name for path in workdir.glob("*/checkpoints")} - {"together"}
        raise UserError(
            f"{workdir} holds runs trained together; name one of them: {', '.join(sorted(names))}"
        )
    config = load_json(workdir / "config.json")
    settings = read_settings(config)
    tokenizers = load_tokenizers(workdir / "tokenizer")
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    params = jax.eval_shape(task.init, jax.random.key(0))
    params = rules.shard(params, build.mesh_for_use(settings))
    checkpoints = Checkpoints(workdir / "checkpoints", settings.checkpoint)
    if average is None:
        step, params = checkpoints.restore_params(checkpoint, params)
    else:
        steps, params = checkpoints.average(average, checkpoint, params)
        step = steps[0]
    return Run(config, workdir, task, params, step)
