# SPDX-License-Identifier: Apache-2.0
"""Trains a config in a workdir."""

from pathlib import Path

from ml_collections import ConfigDict

from transformer_jax.nn.lora import merge_adapters
from transformer_jax.parallel import hosts
from transformer_jax.runs.fit import SingleRun, fit
from transformer_jax.runs.prepare import open_training, prepare
from transformer_jax.runs.run import Run
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.user_modules import Modules
from transformer_jax.runs.workdir import TOKENIZER, open_for_writing
from transformer_jax.runtime.platform import use_compilation_cache
from transformer_jax.runtime.progress import shown
from transformer_jax.runtime.startup import keep_freed_memory
from transformer_jax.training.loop import GoodputTimer


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
      Stopped: a SIGTERM came; the state is saved, and the same call continues.
    """
    clock = GoodputTimer()
    keep_freed_memory()
    use_compilation_cache()
    with shown(progress and hosts.is_primary()), open_for_writing(workdir) as handle:
        folder = handle.folder
        training = open_training([config], modules, handle)
        with handle.locked(), training.checkpoints:
            hosts.run_on_primary(lambda: prepare(training, folder))
            handle.copy_from_primary(TOKENIZER)
            (task,) = training.open_tasks(folder)
            run = SingleRun(training, folder, task, [folder])
            state = fit(run, clock, until)
            hosts.run_on_primary(lambda: run.log_best(workdir))
        params = merge_adapters(state.model_params)
        return Run(run.settings, folder, task, params, int(state.step))
