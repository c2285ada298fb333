# SPDX-License-Identifier: Apache-2.0
"""A workdir that is opened to be read: its settings, tokenizers, task and one checkpoint."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.checkpoints.step_folder import PARAMS, PROVENANCE
from transformer_jax.checkpoints.store import Snapshot, Which, open_snapshot
from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts
from transformer_jax.runs import build
from transformer_jax.runs.config import load_json
from transformer_jax.runs.provenance import check_provenance, tokenizer_provenance
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.user_modules import Modules, load_modules
from transformer_jax.runs.workdir import CHECKPOINTS, CONFIG, TOGETHER, TOKENIZER, workdir_path
from transformer_jax.tasks.interface import Task
from transformer_jax.tokenization import Tokenizers, load_tokenizers


@dataclasses.dataclass(frozen=True)
class Opened:
    """A run's workdir, and its config with values of this command. Tokenizers, task and checkpoint
    ("latest", "best" or a step) are read when they are first asked for."""

    workdir: Path
    settings: Settings
    which: Which = "latest"

    @functools.cached_property
    def tokenizers(self) -> Tokenizers:
        """The tokenizers; UserError in all processes of a job if one cannot read them, or if they
        differ."""

        def load_and_describe() -> tuple[Tokenizers, dict[str, str]]:
            tokenizers = load_tokenizers(self.workdir / TOKENIZER)
            return tokenizers, tokenizer_provenance(tokenizers)

        return hosts.require_agreement(load_and_describe)

    @functools.cached_property
    def task(self) -> Task:
        """The task, with its model; errors as of `build.build_task`."""
        return build.build_task(self.settings, build.vocab_sizes(self.tokenizers), self.tokenizers)

    @functools.cached_property
    def snapshot(self) -> Snapshot:
        """The checkpoint, chosen and verified once: a training run may be writing others."""
        return open_snapshot(self.workdir / CHECKPOINTS, self.which, (PARAMS, PROVENANCE))

    def check_provenance(self, others: Mapping[str, str] | None = None) -> None:
        """Raises UserError if tokenizers, or `others`, differ from those of its training."""
        now = {**tokenizer_provenance(self.tokenizers), **(others or {})}
        check_provenance(now, self.snapshot.provenance, self.workdir)


def open_workdir(
    path: str | Path,
    which: Which = "latest",
    modules: Modules | None = (),
    overrides: Mapping[str, Any] | None = None,
) -> Opened:
    """Opens the run that a workdir, or an address, holds. Nothing there is executed.

    Args:
      modules: the user's modules that the run needs (`runs.user_modules`); None: its parameters
        alone are read, for which none is needed.
      overrides: config values of this command, {"section.field": value}.

    Raises:
      UserError: there is no such run, its config is damaged, or a module is not given.
    """
    workdir = workdir_path(path)
    if (workdir / TOGETHER).is_dir():
        names = {folder.parent.name for folder in workdir.glob(f"*/{CHECKPOINTS}")} - {TOGETHER}
        raise UserError(
            f"{workdir} holds runs trained together; name one of them: {', '.join(sorted(names))}"
        )
    if modules is not None:
        load_modules(modules, workdir)
    try:
        return Opened(workdir, load_json(workdir / CONFIG, overrides), which)
    except UserError:
        load_modules((), workdir)  # a component that is missing here may be that of a module
        raise
