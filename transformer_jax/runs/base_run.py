# SPDX-License-Identifier: Apache-2.0
"""Loads the run of `train.init_from`: the frozen base of LoRA, the reference policy of DPO.

A run may come from strangers, and `train.init_from` with it. The config of a loaded run
(`loaded_from` below is its workdir) may name a path of this machine that belongs to the user or is
beside the workdir; anything else, and every address, is refused unless the user names it
(`with_base`). A config that is trained is the user's own: it may name any run.
"""

import copy
import dataclasses
import hashlib
import logging
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from transformer_jax.checkpoints.step_folder import PARAMS, most_bytes
from transformer_jax.checkpoints.store import Snapshot, open_snapshot
from transformer_jax.data.batches.loss_masks import LossMaskedTexts
from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts, sharding
from transformer_jax.parallel.sharding import mesh_for_inference
from transformer_jax.runs.config import load_json, read_settings
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.workdir import CHECKPOINTS, CONFIG, REFERENCE, workdir_path
from transformer_jax.runtime.files import atomic_writer, open_regular, read_cached
from transformer_jax.tasks.interface import Task
from transformer_jax.tasks.losses import CausalLosses, ContextTarget
from transformer_jax.tasks.preference import Preference

logger = logging.getLogger(__name__)

_TEXTS_AT_ONCE = 1024
_BYTES_OF_NAMES = 1 << 16


def with_base(config: ConfigDict, base: str | Path) -> ConfigDict:
    """The config of a loaded run with `train.init_from` replaced by the run that the user names.

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


def require_base_named(settings: Settings) -> None:
    """Raises UserError if adapters or preferences need another run, and none is named."""
    needs_base = settings.lora.rank is not None or settings.task.name == "preference"
    if needs_base and not settings.train.init_from:
        raise UserError(
            f"{_need_of_base(settings)}, but train.init_from names no run: set it to the workdir "
            "of one"
        )


def open_base(
    settings: Settings, loaded_from: Path | None = None, most: int | None = None
) -> Snapshot | None:
    """Opens the latest checkpoint of the run that a run's adapters change; None without adapters.

    Args:
      settings: the settings of the run with the adapters.
      loaded_from: its workdir, if `train.init_from` comes from a loaded config; None: the user
        named it.
      most: maximal size of the parameters in bytes; None: no limit.

    Raises:
      UserError: the base is not named or missing, has adapters itself, or may only be read if the
        user names it.
    """
    if settings.lora.rank is None:
        return None
    workdir = base_workdir(settings, loaded_from)
    return open_snapshot(workdir / CHECKPOINTS, items=(PARAMS,), most=most)


def base_provenance(base: Snapshot | None) -> dict[str, str]:
    """Describes the base of a run's adapters (`runs.provenance`); empty without adapters."""
    return {} if base is None else {"base of its adapters": base.id}


def abstract_adapters(settings: Settings, abstract_params: Any) -> Any:
    """Shapes of the adapters of parameters of these shapes."""
    return jax.eval_shape(lambda: settings.lora.init_adapters(jax.random.key(0), abstract_params))


def base_workdir(settings: Settings, loaded_from: Path | None = None) -> Path:
    """The workdir of the other run; arguments as of `open_base`.

    Raises:
      UserError: it is not named or missing, has adapters itself, or may only be read if the user
        names it.
    """
    require_base_named(settings)
    if loaded_from is not None:
        _require_trusted(str(settings.train.init_from), loaded_from)
    workdir = workdir_path(str(settings.train.init_from))
    if not (workdir / CONFIG).exists():
        raise UserError(
            f"{_need_of_base(settings)}, and {settings.train.init_from} (train.init_from) is not "
            "there; bring it back, or name it with --base=RUN (base= in Python)"
        )
    if load_json(workdir / CONFIG).lora.rank is not None:
        raise UserError(
            f"the run {settings.train.init_from} (train.init_from) has adapters itself; export it, "
            "which merges them, and import the result"
        )
    return workdir


def _require_trusted(base: str, workdir: Path) -> None:
    """Raises UserError for a base that a loaded config may not choose by itself."""
    if "://" in base:
        reason = "is an address"
    elif not os.path.exists(base):
        return  # the reader reports the error
    else:
        path = Path(base).resolve()
        is_beside = path.is_relative_to(workdir.resolve().parent)
        if is_beside or path.stat().st_uid == os.geteuid():
            return
        reason = "belongs to another user"
    raise UserError(
        f"{workdir}: its config names the run {base!r} (train.init_from), which {reason}, and a "
        "config may come from strangers; if you trust that run, name it: --base=RUN (base= in "
        "Python)"
    )


def _need_of_base(settings: Settings) -> str:
    """The setting that needs another run, for messages."""
    if settings.lora.rank is not None:
        return f"config.lora.rank is {settings.lora.rank}, adapters beside another run's parameters"
    return (
        f"config.task.name {settings.task.name!r} compares with the run that training starts from"
    )


def with_reference(
    task: Task, settings: Settings, workdir: Path, loaded_from: Path | None = None
) -> Task:
    """The task; a preference task gets its reference policy."""
    if not isinstance(task, Preference):
        return task
    reference = ReferencePolicy(settings, workdir, task, loaded_from)
    return dataclasses.replace(task, reference=reference)


class _StoredScores(NamedTuple):
    """The contents of a file in the workdir's folder `reference/`.

    Attributes:
      log_probs: log-probabilities of D texts, float32 [D].
      base: the id of the checkpoint that computed them.
    """

    log_probs: np.ndarray
    base: str


@dataclasses.dataclass(frozen=True)
class ReferencePolicy:
    """Log-probabilities of texts under the run of `train.init_from`.

    They are computed once and stored in the workdir; later that run is not needed for them.

    Attributes:
      settings: the settings of the run that is trained.
      workdir: the workdir of that run.
      task: the task of that run, with its model.
      loaded_from: the workdir, if `train.init_from` comes from a loaded config; None: the user
        named it.
    """

    settings: Settings
    workdir: Path
    task: Preference
    loaded_from: Path | None = None

    def __call__(self, texts: LossMaskedTexts) -> np.ndarray:
        """Log-probabilities of the marked tokens of D texts, float32 [D].

        Raises:
          UserError: they are not stored, and the reference run is missing or has changed.
        """
        path = self.workdir / REFERENCE / f"{_digest(texts)}.npz"
        stored = _read_scores(path, len(texts))
        if all(hosts.gather(stored is not None)):
            assert stored
            return stored.log_probs
        shapes = jax.eval_shape(self.task.init, jax.random.key(0))
        shapes = sharding.add_shardings(shapes, mesh_for_inference(self.settings.parallel))
        base = self._open(most_bytes(shapes))
        log_probs = self._score(base.params(shapes), texts)
        scores = _StoredScores(log_probs, base.id)
        hosts.run_on_primary(lambda: _write_scores(path, scores))
        return log_probs

    def _open(self, most: int) -> Snapshot:
        """Opens the reference run; UserError if stored scores are from another checkpoint."""
        workdir = base_workdir(self.settings, self.loaded_from)
        base = open_snapshot(workdir / CHECKPOINTS, items=(PARAMS,), most=most)

        def check() -> None:
            for path in sorted((self.workdir / REFERENCE).glob("*.npz")):
                stored = _read_scores(path)
                if stored and stored.base != base.id:
                    raise UserError(
                        f"{self.workdir} was compared with another checkpoint of {workdir}: "
                        f"{stored.base}; here: {base.id}; restore that checkpoint"
                    )

        hosts.run_on_primary(check)
        return base

    def _score(self, params: Any, texts: LossMaskedTexts) -> np.ndarray:
        """Log-probabilities of all texts; the processes of a job compute them together."""
        task = self.task
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


def _write_scores(path: Path, scores: _StoredScores) -> None:
    """Writes a file; logs a warning if that fails, and they are computed again next time."""
    try:
        path.parent.mkdir(exist_ok=True)
        with atomic_writer(path) as file:
            np.savez(file, **scores._asdict())
    except OSError as error:
        logger.warning("the reference's log-probabilities are not kept: %s", error)


def _read_scores(path: Path, count: int | None = None) -> _StoredScores | None:
    """Reads a file, of `count` texts if given; None if it is missing or damaged.

    The format has a checksum.
    """

    def read(path: Path) -> _StoredScores:
        most = None if count is None else 4 * count + _BYTES_OF_NAMES
        with open_regular(path, most) as file:
            arrays: Any = np.load(file, allow_pickle=False)
            scores = _StoredScores(arrays["log_probs"], str(arrays["base"]))
        if scores.log_probs.dtype != np.float32 or count not in (None, len(scores.log_probs)):
            raise ValueError("it holds other arrays")
        return scores

    return read_cached(path, read)
