# SPDX-License-Identifier: Apache-2.0
"""Trains a config in a workdir."""

import logging
import math
from pathlib import Path

from ml_collections import ConfigDict

from transformer_jax.errors import Interrupted
from transformer_jax.logs.run_log import four_digits
from transformer_jax.nn.lora import merge_adapters
from transformer_jax.parallel import hosts
from transformer_jax.runs.evaluate import score_of, selection_metric
from transformer_jax.runs.fit import SingleRun, fit, validation_records
from transformer_jax.runs.prepare import open_training, prepare
from transformer_jax.runs.run import Run
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.user_modules import Modules
from transformer_jax.runs.workdir import TOKENIZER, open_for_writing
from transformer_jax.runtime import platform
from transformer_jax.runtime.progress import in_notebook, shown
from transformer_jax.runtime.startup import keep_freed_memory
from transformer_jax.tasks.interface import Task
from transformer_jax.training.loop import GoodputTimer

logger = logging.getLogger(__name__)


def train(
    config: Settings | ConfigDict,
    workdir: str | Path,
    modules: Modules = (),
    *,
    until: int | None = None,
    progress: bool = True,
) -> Run:
    """Trains a config in a workdir, or resumes from its latest checkpoint.

    In a job of many processes each calls this, with the same workdir, shared or at an address.

    Args:
      workdir: the workdir of the run; created if it does not exist.
      modules: the user's modules, with components that the config names (`runs.user_modules`).
      until: the step to pause after. The same call with a later step, or none, resumes there; if
        the run is evaluated at this step anyway, it ends as a run that was not paused.
      progress: show the progress on stderr or, in a notebook, in one line (`runtime.progress`).

    Raises:
      UserError: the config, its data or a module cannot be used, the workdir holds another run, or
        the loss is no longer finite.
      Stopped: a SIGTERM or an interrupt (`Interrupted`) came; the state is saved, and the same call
        continues. In a notebook an interrupted run is returned.
    """
    if not in_notebook():
        return _train(config, workdir, modules, until, progress)
    try:
        return _train(config, workdir, modules, until, progress)
    except Interrupted as stop:
        from transformer_jax.runs.load import load

        print(str(stop).replace("the same command", "the same cell"))
        return load(workdir, modules=modules)
    except KeyboardInterrupt:  # before the first step or after the last one, or a second time
        raise Interrupted("interrupted; the same cell continues from what is saved") from None


def _train(
    config: Settings | ConfigDict,
    workdir: str | Path,
    modules: Modules,
    until: int | None,
    progress: bool,
) -> Run:
    clock = GoodputTimer()
    keep_freed_memory()
    platform.use_compilation_cache()
    with shown(progress and hosts.is_primary()), open_for_writing(workdir) as handle:
        folder = handle.folder
        training = open_training([config], modules, handle)
        settings = training.settings
        checkpoints = training.checkpoints
        same_bits = platform.reproducible(settings.train.reproducible)
        with handle.locked(), checkpoints, same_bits:
            hosts.run_on_primary(lambda: prepare(training, folder))
            handle.copy_from_primary(TOKENIZER)
            (task,), snapshots = training.open_tasks(folder)
            run = SingleRun(settings, folder, task, training.examples, snapshots, [folder])
            state = fit(run, checkpoints, clock, until)
            hosts.run_on_primary(lambda: _log_best(settings, task, folder, workdir))
        return Run(settings, folder, task, merge_adapters(state.model_params), int(state.step))


def _log_best(settings: Settings, task: Task, folder: Path, workdir: str | Path) -> None:
    """Logs the best validation score and where the run is."""
    name = selection_metric(settings, task)
    records = validation_records(folder, settings, settings.train.num_steps)
    finite = [record for record in records if math.isfinite(score_of(record, name))]
    if finite:
        record = max(finite, key=lambda record: score_of(record, name))
        score = four_digits(abs(score_of(record, name)))
        best = f"{name.removeprefix('-')} {score} at step {record['step']}"
        if "num_all_examples" in record and not name.endswith("loss"):
            best += f", on {record['num_examples']:,} of {record['num_all_examples']:,} examples"
        logger.info("best %s; the run is in %s", best, workdir)
