"""Loads the run of `train.init_from`: the frozen base of LoRA, the reference policy of DPO.

A run may come from strangers, and `train.init_from` with it. The config of a loaded run
(`loaded_from` below is its workdir) may name a path of this machine that belongs to the user or is
beside the workdir; anything else, and every address, is refused unless the user names it
(`with_base`). A config that is trained is the user's own: it may name any run.
"""

import copy
import os
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.errors import UserError
from transformer_jax.runs import provenance
from transformer_jax.runs.config import Settings, load_json, read_settings
from transformer_jax.runs.workdir import CHECKPOINTS, CONFIG, workdir_path

_BASE = "base of its adapters"


def with_base(config: ConfigDict, base: str | Path) -> ConfigDict:
    """The config of a loaded run, with the run that the user names in `train.init_from`.

    Raises:
      UserError: the run needs no other one.
    """
    settings = read_settings(config)
    if settings.lora.rank is None and settings.task.name != "preference":
        raise UserError(
            f"--base: {base} is not needed; the run has no adapters (lora.rank) and learned no "
            "preferences"
        )
    config = copy.deepcopy(config)
    config.train.init_from = str(base)
    return config


def of_base(settings: Settings, loaded_from: Path | None = None) -> dict[str, str]:
    """What a run's adapters rest on, for its checkpoints' provenance; nothing without adapters.

    Args:
      settings: of the run.
      loaded_from: its workdir, if `train.init_from` is what the loaded config says; None: the user
        named it.

    Raises:
      UserError: no other run is named, where adapters or preferences need one, or it is gone.
    """
    if settings.lora.rank is None:
        if settings.task.name == "preference":
            _require_named(settings)
        return {}
    folders = step_folders(base_workdir(settings, loaded_from) / CHECKPOINTS)
    return {_BASE: provenance.of_checkpoints(folders)}


def base_params(settings: Settings, abstract: Any, loaded_from: Path | None = None) -> Any:
    """The parameters of the other run, on the shardings of `abstract`.

    Raises:
      UserError: the run that has them is gone, has adapters itself, is of another model, or is not
        to be read unless the user names it.
    """
    workdir = base_workdir(settings, loaded_from)
    checkpoints = Checkpoints(workdir / CHECKPOINTS, settings.checkpoint)
    return checkpoints.restore_params("latest", abstract)[1]


def abstract_adapters(settings: Settings, abstract: Any) -> Any:
    """Shapes of the adapters of parameters of these shapes."""
    return jax.eval_shape(lambda: settings.lora.adapters(jax.random.key(0), abstract))


def base_workdir(settings: Settings, loaded_from: Path | None = None) -> Path:
    """Workdir of the other run.

    Raises:
      UserError: it is not named or gone, has adapters itself, or is not to be read unless the user
        names it.
    """
    _require_named(settings)
    if loaded_from is not None:
        _require_trusted(str(settings.train.init_from), loaded_from)
    workdir = workdir_path(str(settings.train.init_from))
    if not (workdir / CONFIG).exists():
        raise UserError(
            f"{_asks(settings)}, and {settings.train.init_from} (train.init_from) is not there; "
            "bring it back, or name it with --base=RUN (base= in Python)"
        )
    if load_json(workdir / CONFIG).lora.rank is not None:
        raise UserError(
            f"the run {settings.train.init_from} (train.init_from) has adapters itself; export it "
            "and import what comes of it, which merges them"
        )
    return workdir


def _require_trusted(origin: str, workdir: Path) -> None:
    """Raises UserError for a base that a loaded config may not choose by itself."""
    if "://" in origin:
        reason = "is an address"
    elif not os.path.exists(origin):
        return  # the reader reports the error
    else:
        path = Path(origin).resolve()
        is_beside = path.is_relative_to(workdir.resolve().parent)
        if is_beside or path.stat().st_uid == os.geteuid():
            return
        reason = "belongs to another user"
    raise UserError(
        f"{workdir}: its config names the run {origin!r} (train.init_from), which {reason}, and a "
        "config may come from strangers; if you trust that run, name it: --base=RUN (base= in "
        "Python)"
    )


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
