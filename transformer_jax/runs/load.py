# SPDX-License-Identifier: Apache-2.0
"""Loads the run that a workdir holds, or several that predict with their mean probabilities."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError, user_errors
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.nn.positions import check_num_positions
from transformer_jax.parallel.sharding import mesh_of
from transformer_jax.runs.build import task_kind
from transformer_jax.runs.frozen import read_params, require_base_needed, with_stored_scores
from transformer_jax.runs.opened import open_workdir
from transformer_jax.runs.provenance import tokenizer_provenance
from transformer_jax.runs.run import Run
from transformer_jax.runs.user_modules import Modules
from transformer_jax.runtime.platform import use_compilation_cache
from transformer_jax.runtime.startup import keep_freed_memory
from transformer_jax.tasks.interface import Frozen, Params, with_model


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
      base: workdir of the run under its adapters or that its preferences are compared with; None:
        `train.init_from` of its config, unless that is an address.

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
    return Run(settings, opened.workdir, task, params, opened.snapshot.step, average=average)


def load_ensemble(
    *runs: str | Path | Run,
    checkpoint: str | int = "latest",
    average: int | None = None,
    modules: Modules = (),
    base: str | Path | None = None,
) -> "EnsembleRun":
    """Loads runs as an ensemble, which predicts with the mean of their probabilities.

    Models may differ; task, tokenizers and template must be the same. Config fields, such as
    those of the search, are those of the first run. Nothing is written to any workdir.

    Args:
      *runs: workdirs, loaded as `load` does, or runs that are loaded or patched already.
    """
    if not runs:
        raise UserError("load_ensemble: name at least one run")
    members = [
        run if isinstance(run, Run) else load(run, checkpoint, average, modules, base)
        for run in runs
    ]
    return EnsembleRun.of(members)


def _of_one_run(use: str) -> Any:
    """A method that only one run has; on an ensemble it raises UserError."""

    def refuse(self: "EnsembleRun", *args: Any, **named: Any) -> Any:
        raise UserError(f"{use}: this is an ensemble of several runs; take one of its `members`")

    return refuse


@dataclasses.dataclass(frozen=True, repr=False)
class EnsembleRun(Run):
    """Runs, its `members`, that predict together, with settings and task of the first one."""

    members: tuple[Run, ...] = ()

    model_inputs = _of_one_run("model_inputs")
    head_importance = _of_one_run("head_importance")
    batches = _of_one_run("batches")
    save = _of_one_run("save")
    plot = _of_one_run("plot")
    records = property(_of_one_run("records"))
    hook_points = property(_of_one_run("hook_points"))

    @classmethod
    def of(cls, members: Sequence[Run]) -> "EnsembleRun":
        """The ensemble; UserError if the runs predict other tokens, or from other inputs."""
        from transformer_jax.models.ensemble import EnsembleModel

        first = members[0]
        _check_members(members)
        return cls(
            settings=first.settings,
            workdir=first.workdir,
            task=with_model(first.task, EnsembleModel([member.model for member in members])),
            params=tuple(member.params for member in members),
            step=first.step,
            stored=False,
            members=tuple(members),
        )

    def summary(self) -> Mapping[str, Any]:
        of_all = {
            "workdir": ", ".join(str(member.workdir) for member in self.members),
            "step": ", ".join(str(member.step) for member in self.members),
        }
        return {**super().summary(), **of_all}

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "ensemble": [str(member.workdir) for member in self.members],
            "steps": [member.step for member in self.members],
        }

    @functools.cached_property
    def frozen(self) -> Frozen:
        """No parameters. Raises UserError if the task compares with those of another run."""
        name = self.settings.task.name
        if task_kind(self.settings).frozen:
            raise UserError(f"evaluate: task {name} compares a model with its own reference run")
        return {}

    def with_config(self, changes: Mapping[str, Any]) -> Run:
        return self.of([member.with_config(changes) for member in self.members])

    def patched(self, changes: Mapping[str, Any]) -> Run:
        return self.of([member.patched(changes) for member in self.members])

    def with_params(self, params: Params) -> Run:
        pairs = zip(self.members, params, strict=True)
        return self.of([member.with_params(member_params) for member, member_params in pairs])

    def _decode(self, use: str, overrides: Mapping[str, Any]) -> DecodeConfig:
        options = super()._decode(use, overrides)
        if options.draft is not None:
            raise UserError("decode: an ensemble takes no draft; leave decode.draft out")
        if options.repetition_penalty != 1 and len(self.members) > 1:
            raise UserError(
                "decode: repetition_penalty scales the logits of one model, and an ensemble has "
                "only probabilities; set it to 1"
            )
        return options


def _check_members(members: Sequence[Run]) -> None:
    """Raises UserError if the runs do not predict the same tokens from the same inputs."""
    first, *others = members
    shared = _shared_by_members(first)
    for run in others:
        for name, value in _shared_by_members(run).items():
            if shared.get(name) != value:
                raise UserError(
                    f"an ensemble has one {name}; {first.workdir} and {run.workdir} have different "
                    "ones"
                )
    for run in members:
        if not hasattr(run.model, "prefill"):
            raise UserError(
                f"an ensemble generates tokens, and the model of {run.workdir} does not"
            )
        place = f"an ensemble reads texts as its first run does, and {run.workdir} cannot"
        with user_errors(place, f"; name {run.workdir} first"):
            check_num_positions(run.model.config, max(first.task.lengths.values()))


def _shared_by_members(run: Run) -> dict[str, Any]:
    return {
        "task": run.settings.task.name,
        **tokenizer_provenance(run.tokenizer),
        "template": getattr(run.task, "template", None),
        "division among devices (config.parallel)": mesh_of(run.params),
    }
