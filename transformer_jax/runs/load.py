"""Loading the run that a workdir holds."""

from pathlib import Path

import jax

from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.errors import UserError
from transformer_jax.nn.lora import merge_adapters, with_adapters
from transformer_jax.parallel import hosts, sharding
from transformer_jax.parallel.sharding import mesh_for_inference
from transformer_jax.runs import build, provenance
from transformer_jax.runs.base_run import (
    abstract_adapters,
    base_params,
    of_base,
    with_base,
    with_reference,
)
from transformer_jax.runs.config import load_json, read_settings
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
    """Loads a run: nothing in the workdir is code, and nothing of it is executed.

    Args:
      workdir: of a run with a checkpoint.
      checkpoint: "latest", "best" or a step.
      average: the mean of so many snapshots of the parameters, up to that checkpoint.
      modules: the user's own, which the run needs (`runs.user_modules`).
      base: workdir of the run under its adapters or that its preferences are compared with; None:
        `train.init_from` of its config, if that is a path of this machine which belongs to the user
        or is beside the workdir.

    Raises:
      UserError: there is no such run or checkpoint, it is damaged, its tokenizers are not those
        that it was trained with, its modules are not given, or the run that its adapters are
        beside is gone or changed, or is not to be read unless the user names it.
    """
    keep_freed_memory()
    use_compilation_cache()
    workdir = workdir_path(workdir)
    _require_one_run(workdir)
    load_modules(modules, workdir)
    config = load_json(workdir / CONFIG)
    config = config if base is None else with_base(config, base)
    loaded_from = workdir if base is None else None
    settings = read_settings(config)
    checkpoints = Checkpoints(workdir / CHECKPOINTS, settings.checkpoint)

    def opened() -> tuple[Tokenizers, provenance.Provenance]:
        tokenizers = load_tokenizers(workdir / TOKENIZER)
        provenance.check_tokenizers(tokenizers, checkpoints, checkpoint, workdir)
        newest = provenance.of_checkpoints(step_folders(checkpoints.directory))
        return tokenizers, provenance.of_tokenizers(tokenizers) | {"newest checkpoint": newest}

    tokenizers, _ = hosts.require_agreement(opened)
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    task = with_reference(task, settings, workdir, loaded_from)
    abstract = jax.eval_shape(task.init, jax.random.key(0))
    mesh = mesh_for_inference(settings.parallel)
    abstract = sharding.add_shardings(abstract, mesh)
    saved = abstract
    if settings.lora.rank is not None:
        rests_on = of_base(settings, loaded_from)
        provenance.check(rests_on, checkpoints.kept_provenance(checkpoint), workdir)
        saved = sharding.add_shardings(abstract_adapters(settings, abstract), mesh)
    if average is None:
        step, params = checkpoints.restore_params(checkpoint, saved)
    else:
        steps, params = checkpoints.average(average, checkpoint, saved)
        step = steps[0]
    if settings.lora.rank is not None:
        params = merge_adapters(with_adapters(base_params(settings, abstract, loaded_from), params))
    return Run(config, workdir, task, params, step)


def _require_one_run(workdir: Path) -> None:
    if (workdir / TOGETHER).is_dir():
        names = {path.parent.name for path in workdir.glob(f"*/{CHECKPOINTS}")} - {TOGETHER}
        raise UserError(
            f"{workdir} holds runs trained together; name one of them: {', '.join(sorted(names))}"
        )
