"""Loads the run of `train.init_from`: the frozen base of LoRA, the reference policy of DPO.

A run may come from strangers, and `train.init_from` with it. The config of a loaded run
(`loaded_from` below is its workdir) may name a path of this machine that belongs to the user or is
beside the workdir; anything else, and every address, is refused unless the user names it
(`with_base`). A config that is trained is the user's own: it may name any run.
"""

import contextlib
import copy
import dataclasses
import hashlib
import logging
import os
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.data.batches.loss_masks import LossMaskedTexts
from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts, sharding
from transformer_jax.parallel.sharding import mesh_for_inference
from transformer_jax.runs import provenance
from transformer_jax.runs.config import load_json, read_settings
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.workdir import CHECKPOINTS, CONFIG, REFERENCE, workdir_path
from transformer_jax.runtime.files import atomic_writer, open_regular
from transformer_jax.tasks.interface import Task
from transformer_jax.tasks.losses import CausalLosses, ContextTarget
from transformer_jax.tasks.preference import Preference

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


# FOLDED runs.reference: What the run that training starts from makes of answers: computed once,
# and kept in the workdir. D texts.


logger = logging.getLogger(__name__)

_TEXTS_AT_ONCE = 1024
_BYTES_OF_NAMES = 1 << 16


def with_reference(
    task: Task, settings: Settings, workdir: Path, loaded_from: Path | None = None
) -> Task:
    """The task; where it compares answers, with what it compares by."""
    if not isinstance(task, Preference):
        return task
    reference = KeptReference(settings, workdir, task, loaded_from)
    return dataclasses.replace(task, reference=reference)


class _StoredScores(NamedTuple):
    """What a file of the folder holds.

    Attributes:
      log_probs: float32 [D].
      base: the checkpoint that they are of, as provenance describes it.
    """

    log_probs: np.ndarray
    base: str


@dataclasses.dataclass(frozen=True)
class KeptReference:
    """Texts -> log P of what counts of each, float32 [D], under the run `train.init_from`.

    That run is not needed for texts that were asked for before.

    Attributes:
      settings: of the run that is trained.
      workdir: where that run is kept.
      task: of the run, with its model.
      loaded_from: the workdir, if `train.init_from` is what the loaded config says
        (`runs.base_run`); None: the user named it.
    """

    settings: Settings
    workdir: Path
    task: Preference
    loaded_from: Path | None = None

    def __call__(self, texts: LossMaskedTexts) -> np.ndarray:
        """UserError where they are not kept, and the run is gone or has changed."""
        path = self.workdir / REFERENCE / f"{_digest(texts)}.npz"
        kept = _read(path, len(texts))
        if all(hosts.gather(kept is not None)):
            assert kept
            return kept.log_probs
        base = hosts.run_on_primary(self._base)
        found = self._computed(texts)
        hosts.run_on_primary(lambda: _keep(path, _StoredScores(found, base)))
        return found

    def _base(self) -> str:
        """The checkpoint of the other run; UserError where it is not that of what is kept."""
        origin = base_workdir(self.settings, self.loaded_from)
        now = provenance.of_checkpoints(step_folders(origin / CHECKPOINTS))
        for path in sorted((self.workdir / REFERENCE).glob("*.npz")):
            kept = _read(path)
            if kept and kept.base != now:
                raise UserError(
                    f"{self.workdir} was compared with another checkpoint of {origin}: "
                    f"{kept.base}; here: {now}; bring back what it was"
                )
        return now

    def _computed(self, texts: LossMaskedTexts) -> np.ndarray:
        """Of all texts; the processes of a job compute them together."""
        task = self.task
        shapes = jax.eval_shape(task.init, jax.random.key(0))
        shapes = sharding.add_shardings(shapes, mesh_for_inference(self.settings.parallel))
        params = base_params(self.settings, shapes, self.loaded_from)
        losses = CausalLosses(task.model, task.loss_options)
        size, found = self.settings.decode.batch_size, list[float]()
        with tqdm(total=len(texts), desc="reference", unit="answer", disable=None) as bar:
            for start in range(0, len(texts), _TEXTS_AT_ONCE):
                stop = min(start + _TEXTS_AT_ONCE, len(texts))
                splits = [_split(*texts.text(i)) for i in range(start, stop)]
                scores = losses.score(params, splits, task.max_length, size)
                found += [score.log_prob for score in scores]
                bar.update(stop - start)
        return np.array(found, np.float32)


def _split(tokens: np.ndarray, loss_mask: np.ndarray) -> ContextTarget:
    start = int(loss_mask.argmax())
    return tokens[:start].tolist(), tokens[start:].tolist()


def _digest(texts: LossMaskedTexts) -> str:
    digest = hashlib.sha256()
    for array in (texts.tokens, texts.loss_mask, texts.starts):
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]


def _keep(path: Path, kept: _StoredScores) -> None:
    """Where that cannot be done, they are computed again next time."""
    try:
        path.parent.mkdir(exist_ok=True)
        with atomic_writer(path) as file:
            np.savez(file, **kept._asdict())
    except OSError as error:
        logger.warning("the reference's log-probabilities are not kept: %s", error)


def _read(path: Path, count: int | None = None) -> _StoredScores | None:
    """What is kept, `count` numbers where that is given; None where that is not there, or not
    whole: the format has a checksum."""
    most = None if count is None else 4 * count + _BYTES_OF_NAMES
    broken: tuple[type[Exception], ...] = (OSError, ValueError, KeyError, EOFError)
    with contextlib.suppress(*broken, zipfile.BadZipFile), open_regular(path, most) as file:
        arrays: Any = np.load(file, allow_pickle=False)
        kept = _StoredScores(arrays["log_probs"], str(arrays["base"]))
        if kept.log_probs.dtype == np.float32 and count in (None, len(kept.log_probs)):
            return kept
    return None
