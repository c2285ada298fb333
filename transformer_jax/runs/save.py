# SPDX-License-Identifier: Apache-2.0
"""Saves a run to a workdir of its own."""

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax.checkpoints.step_folder import PARAMS, PROVENANCE, TRAINING
from transformer_jax.checkpoints.store import Checkpoints, open_snapshot
from transformer_jax.errors import UserError
from transformer_jax.logs.records import RecordFile
from transformer_jax.models.patches import PatchedModel
from transformer_jax.runs import build
from transformer_jax.runs.config import override, save_json
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    MODULES,
    REFERENCE,
    TOKENIZER,
    lock_workdir,
)
from transformer_jax.runtime.files import atomic_folder
from transformer_jax.training.state import OPTIONAL_FIELDS, TrainState


def save(run: Any, workdir: str | Path) -> None:
    """Implements `Run.save`; `run` is a `Run`."""
    if isinstance(run.model, PatchedModel):
        raise UserError("save: the run is patched, and patches are not parameters")
    settings = run.settings
    source = run.workdir / CHECKPOINTS
    is_merged = settings.lora.rank is not None
    if is_merged:
        settings = override(settings, {"lora.rank": None, "train.init_from": None})
    with atomic_folder(Path(workdir), "workdir") as folder, lock_workdir(folder):
        for name in (TOKENIZER, REFERENCE):
            if (run.workdir / name).is_dir():
                shutil.copytree(run.workdir / name, folder / name)
        for name in (MODULES, METRICS):
            if (run.workdir / name).exists():
                shutil.copyfile(run.workdir / name, folder / name)
        if (folder / METRICS).exists():
            RecordFile(folder / METRICS, last_step=run.step).close()
        with Checkpoints(folder / CHECKPOINTS, run.settings.checkpoint) as checkpoints:
            snapshot = open_snapshot(source, run.step, (PARAMS, PROVENANCE))
            checkpoints.provenance |= snapshot.provenance
            if is_merged or not (snapshot.folder / TRAINING).exists():
                checkpoints.save_params(run.step, run.params)
            else:
                state = _training_state(run)
                checkpoints.save(run.step, state, open_snapshot(source, run.step).data_state)
        save_json(settings, folder / CONFIG)


def _training_state(run: Any) -> TrainState:
    """The state of the run's checkpoint, with the parameters of the run."""
    engine = build.build_engine(run.settings, jax.local_devices()[:1])
    _, _, init_state = build.build_training(run.settings, run.task, engine)
    abstract = jax.eval_shape(init_state, run.settings.seed).saved
    snapshot = open_snapshot(run.workdir / CHECKPOINTS, run.step)
    state: TrainState = snapshot.state(abstract, OPTIONAL_FIELDS)
    # An average of snapshots, say, is of the workdir but not what its checkpoint holds.
    equal = jax.tree.all(jax.tree.map(np.array_equal, state.params, run.params))
    return state if equal else state.with_params(run.params)
