"""The parameters of another run, which `train.init_from` names: adapters go beside them, and
preferences are measured by them."""

from pathlib import Path
from typing import Any

import jax

from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.errors import UserError
from transformer_jax.runs import provenance
from transformer_jax.runs.config import Settings, load_json
from transformer_jax.runs.workdir import CHECKPOINTS, CONFIG, workdir_path

_BASE = "base of its adapters"


def of_base(settings: Settings) -> dict[str, str]:
    """What a run's adapters rest on, for its checkpoints' provenance; nothing without adapters.

    Raises:
      UserError: no other run is named, where adapters or preferences need one, or it is gone.
    """
    if settings.lora.rank is None:
        if settings.task.name == "preference":
            _require_named(settings)
        return {}
    folders = step_folders(base_workdir(settings) / CHECKPOINTS)
    return {_BASE: provenance.of_checkpoints(folders)}


def base_params(settings: Settings, abstract: Any) -> Any:
    """The parameters of the other run, on the shardings of `abstract`.

    Raises:
      UserError: the run that has them is gone, has adapters itself, or is of another model.
    """
    workdir = base_workdir(settings)
    checkpoints = Checkpoints(workdir / CHECKPOINTS, settings.checkpoint)
    return checkpoints.restore_params("latest", abstract)[1]


def abstract_adapters(settings: Settings, abstract: Any) -> Any:
    """Shapes of the adapters of parameters of these shapes."""
    return jax.eval_shape(lambda: settings.lora.adapters(jax.random.key(0), abstract))


def base_workdir(settings: Settings) -> Path:
    """The other run's; UserError where it is not named or gone, or has adapters itself."""
    _require_named(settings)
    workdir = workdir_path(str(settings.train.init_from))
    if not (workdir / CONFIG).exists():
        raise UserError(
            f"{_asks(settings)}, and {settings.train.init_from} (train.init_from) is not there; "
            "bring it back"
        )
    if load_json(workdir / CONFIG).lora.rank is not None:
        raise UserError(
            f"the run {settings.train.init_from} (train.init_from) has adapters itself; export it "
            "and import what comes of it, which merges them"
        )
    return workdir


def _require_named(settings: Settings) -> None:
    if not settings.train.init_from:
        raise UserError(
            f"{_asks(settings)}, but train.init_from names no run: set it to the workdir of one"
        )


def _asks(settings: Settings) -> str:
    """What needs another run."""
    if settings.lora.rank is not None:
        return f"config.lora.rank is {settings.lora.rank}, adapters beside another run's parameters"
    return (
        f"config.task.name {settings.task.name!r} compares with the run that training starts from"
    )
