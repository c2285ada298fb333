# SPDX-License-Identifier: Apache-2.0
"""Loads the run that a workdir holds."""

from pathlib import Path

import jax

from transformer_jax.checkpoints.step_folder import PARAMS, PROVENANCE, most_bytes
from transformer_jax.checkpoints.store import open_snapshot
from transformer_jax.errors import UserError
from transformer_jax.nn.lora import merge_adapters, with_adapters
from transformer_jax.parallel import hosts, sharding
from transformer_jax.parallel.sharding import mesh_for_inference
from transformer_jax.runs import build
from transformer_jax.runs.config import load_json, read_settings
from transformer_jax.runs.frozen import (
    abstract_adapters,
    frozen_provenance,
    open_frozen,
    with_base,
    with_stored_scores,
)
from transformer_jax.runs.provenance import check_provenance, tokenizer_provenance
from transformer_jax.runs.run import Run
from transformer_jax.runs.user_modules import Modules, load_modules
from transformer_jax.runs.workdir import CHECKPOINTS, CONFIG, TOGETHER, TOKENIZER, workdir_path
from transformer_jax.runtime.platform import use_compilation_cache
from transformer_jax.runtime.startup import keep_freed_memory
from transformer_jax.tokenization import Tokenizers, load_tokenizers


def load(
    workdir: str | Path,
    checkpoint: str | int = "latest",
    average: int | None = None,
    modules: Modules = (),
    base: str | Path | None = None,
) -> Run:
    """Loads a run. Nothing in the workdir is code, and loading it executes nothing.

    Args:
      workdir: the workdir of a run with a checkpoint.
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
    workdir = workdir_path(workdir)
    _require_single_run(workdir)
    load_modules(modules, workdir)
    config = load_json(workdir / CONFIG)
    loaded_from: Path | None = workdir
    if base is not None:
        config, loaded_from = with_base(config, base), None
    settings = read_settings(config)

    # Shapes of the parameters: of the model, and in the checkpoint.
    tokenizers = _load_tokenizers(workdir)
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    task = with_stored_scores(task, settings, workdir, loaded_from)
    mesh = mesh_for_inference(settings.parallel)
    abstract = sharding.add_shardings(jax.eval_shape(task.init, jax.random.key(0)), mesh)
    saved = abstract
    if settings.lora.rank is not None:
        saved = sharding.add_shardings(abstract_adapters(settings, abstract), mesh)

    # One checkpoint, chosen once: a training run may be writing others.
    items = (PARAMS, PROVENANCE)
    snapshot = open_snapshot(workdir / CHECKPOINTS, checkpoint, items, most_bytes(saved))
    frozen = open_frozen(settings, loaded_from, most_bytes(abstract), ("base",))
    now = tokenizer_provenance(tokenizers) | frozen_provenance(frozen)
    check_provenance(now, snapshot.provenance, workdir)
    if average is None:
        params = snapshot.params(saved)
    else:
        params = snapshot.average(average, saved, settings.checkpoint.keep)[1]
    if "base" in frozen:
        params = merge_adapters(with_adapters(frozen["base"].params(abstract), params))
    return Run(config, workdir, task, params, snapshot.step, loaded_from=loaded_from)


def _require_single_run(workdir: Path) -> None:
    if (workdir / TOGETHER).is_dir():
        names = {path.parent.name for path in workdir.glob(f"*/{CHECKPOINTS}")} - {TOGETHER}
        raise UserError(
            f"{workdir} holds runs trained together; name one of them: {', '.join(sorted(names))}"
        )


def _load_tokenizers(workdir: Path) -> Tokenizers:
    """The tokenizers of a run, which are the same in all processes of a job."""

    def load_and_describe() -> tuple[Tokenizers, dict[str, str]]:
        tokenizers = load_tokenizers(workdir / TOKENIZER)
        return tokenizers, tokenizer_provenance(tokenizers)

    return hosts.require_agreement(load_and_describe)[0]
