# SPDX-License-Identifier: Apache-2.0
"""Loads the run that a workdir holds."""

from pathlib import Path

from transformer_jax.runs.frozen import read_params, require_base_needed, with_stored_scores
from transformer_jax.runs.opened import open_workdir
from transformer_jax.runs.run import Run
from transformer_jax.runs.user_modules import Modules
from transformer_jax.runtime.platform import use_compilation_cache
from transformer_jax.runtime.startup import keep_freed_memory


def load(
    workdir: str | Path,
    checkpoint: str | int = "latest",
    average: int | None = None,
    modules: Modules = (),
    base: str | Path | None = None,
) -> Run:
    """Loads a run. Nothing in the workdir is code, and loading it executes nothing.

    Args:
      checkpoint: "latest", "best" or a step.
      average: number of parameter snapshots to average, up to that checkpoint.
      modules: the user's modules that the run needs (`runs.user_modules`).
      base: workdir of the run under its adapters or that its preferences are compared with; None:
        `train.init_from` of its config, if that is a path of this machine which belongs to the user
        or is beside the workdir.

    Raises:
      UserError: there is no such run or checkpoint, or it is damaged; its tokenizers are not those
        it was trained with; its modules are not given; or the base of its adapters is missing, has
        changed, or may only be read if the user names it.
    """
    keep_freed_memory()
    use_compilation_cache()
    overrides = {} if base is None else {"train.init_from": str(base)}
    opened = open_workdir(workdir, checkpoint, modules, overrides)
    settings = opened.settings
    if base is not None:
        require_base_needed(settings, base)
    params = read_params(opened, average)
    task = with_stored_scores(opened.task, settings, opened.workdir)
    return Run(settings, opened.workdir, task, params, opened.snapshot.step)
