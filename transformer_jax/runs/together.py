"""Seeds, and learning rates, of one config trained together: one compilation, one process."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path

from ml_collections import ConfigDict

from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.runs import build, provenance
from transformer_jax.runs.config import (
    FIXED,
    Settings,
    check_same_run,
    check_trainable,
    load_json,
    override,
    read_settings,
    save_json,
)
from transformer_jax.runs.fit import fit
from transformer_jax.runs.modules import Modules, load_modules, record_modules
from transformer_jax.runs.prepare import prepare
from transformer_jax.runs.replicas import Replicas
from transformer_jax.runs.run import Run
from transformer_jax.runs.sole_writer import sole_writer
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    CONFIG,
    TOGETHER,
    TOKENIZER,
    require_own,
    workdir_path,
    workdir_within,
)
from transformer_jax.runtime.compilation_cache import use_compilation_cache
from transformer_jax.runtime.files import remove
from transformer_jax.runtime.host_memory import keep_freed_memory
from transformer_jax.tokenization import copy_tokenizers, load_tokenizers
from transformer_jax.training.clock import Clock


def seeded(config: ConfigDict, count: int) -> dict[str, ConfigDict]:
    """A config with `count` seeds from its own upwards, by the name of each."""
    seeds = range(config.seed, config.seed + count)
    return {f"seed_{seed}": override(config, {"seed": seed}) for seed in seeds}


def train_together(
    configs: Mapping[str, ConfigDict], workdir: str | Path, modules: Modules = ()
) -> dict[str, Run]:
    """Trains replicas in one program, or goes on from their last checkpoint.

    Each is what `train` makes of its config. Where one diverges the others go on.

    Args:
      configs: by name; they differ in nothing but `seed` and `optimizer.learning_rate`.
      workdir: of all; each has its own below.
      modules: the user's own, with components that the configs name (`runs.modules`).

    Returns:
      The runs, by name.

    Raises:
      UserError: a config, its data or a module cannot be used, the configs differ in more, the
        workdir holds other runs, or no replica's loss is finite any longer.
      Stopped: a SIGTERM came; the joint checkpoint is kept, and the same call goes on.
    """
    clock = Clock()
    keep_freed_memory()
    use_compilation_cache()
    workdir = workdir_path(workdir)
    named = load_modules(modules, workdir)
    members = {name: read_settings(config) for name, config in configs.items()}
    _check_alike(members)
    common, first = workdir_within(workdir, TOGETHER), next(iter(configs.values()))
    folders = {name: workdir_within(workdir, name) for name in configs}
    settings = check_trainable(first)
    examples = open_split(settings.data, "train")
    checkpoints = Checkpoints(common / CHECKPOINTS, settings.checkpoint)
    checkpoints.provenance |= provenance.of_training(examples)
    _check_same_replicas(configs, workdir, checkpoints)
    with contextlib.ExitStack() as open_folders:
        places = [common, *folders.values()]
        for folder in places:
            require_own(folder)  # all of them, before the first is marked
        for folder in places:
            open_folders.enter_context(sole_writer(folder))
        open_folders.enter_context(checkpoints)
        prepare(first, common, checkpoints, examples, named)
        for name, config in configs.items():
            _place_replica(config, folders[name], common / TOKENIZER)
            record_modules(folders[name], config, named)
        tokenizers = load_tokenizers(common / TOKENIZER)
        checkpoints.provenance |= provenance.of_tokenizers(tokenizers)
        task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
        replicas = Replicas(list(members.values()), list(members), workdir, task, examples)
        state = fit(replicas, checkpoints, clock)
        replicas.divide(state, checkpoints)
    runs = {}
    for i, (name, config) in enumerate(configs.items()):
        params = replicas.replica(state.params, i)
        runs[name] = Run(config, folders[name], task, params, step=int(state.step[i]))
    return runs


def _check_alike(members: Mapping[str, Settings]) -> None:
    """Raises UserError where replicas differ in more than seed and learning rate."""
    names = list(members)
    first = members[names[0]]
    for asked, what in (
        (first.task.name == "preference", "config.task.name 'preference'"),
        (first.lora.rank is not None, "config.lora.rank"),
        (first.eval.patience is not None, "config.eval.patience"),
        (first.optimizer.plateau_patience is not None, "config.optimizer.plateau_patience"),
        (first.train.on_spike == "rewind", "config.train.on_spike 'rewind'"),
        (first.logging.watch_steps is not None, "config.logging.watch_steps"),
    ):
        if asked:
            raise UserError(
                f"{what}: such runs do not train together; train one seed after another, each in a "
                "workdir of its own"
            )
    for name in names[1:]:
        rate = members[name].optimizer.learning_rate
        optimizer = dataclasses.replace(first.optimizer, learning_rate=rate)
        alike = dataclasses.replace(first, seed=members[name].seed, optimizer=optimizer)
        for section in FIXED:
            if getattr(alike, section) != getattr(members[name], section):
                raise UserError(
                    f"{name} differs from {names[0]} in config.{section}: replicas may differ in "
                    "seed and optimizer.learning_rate alone; train them one by one"
                )


def _check_same_replicas(
    configs: Mapping[str, ConfigDict], workdir: Path, checkpoints: Checkpoints
) -> None:
    if checkpoints.latest_step() is None:
        alone = [workdir] if (workdir / CONFIG).exists() else []
        alone += [workdir / name for name in configs if step_folders(workdir / name / CHECKPOINTS)]
        if alone:
            raise UserError(
                f"{alone[0]} holds a run that was trained by itself; choose another --workdir"
            )
        return
    held = {path.parent.name for path in workdir.glob(f"*/{CONFIG}")} - {TOGETHER}
    if held != set(configs):
        raise UserError(
            f"{workdir} holds {', '.join(sorted(held))} trained together, not "
            f"{', '.join(configs)}; choose another --workdir or the same number of seeds"
        )
    for name, config in configs.items():
        check_same_run(config, load_json(workdir / name / CONFIG), workdir / name)


def _place_replica(config: ConfigDict, folder: Path, tokenizer: Path) -> None:
    remove(folder / TOKENIZER)
    copy_tokenizers(tokenizer, folder / TOKENIZER)
    save_json(config, folder / CONFIG)
