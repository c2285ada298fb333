"""What the run that training starts from makes of answers: computed once, and kept in the workdir.

D texts.
"""

import contextlib
import dataclasses
import hashlib
import logging
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.data.batches.marked_texts import MarkedTexts
from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts, rules
from transformer_jax.parallel.mesh import mesh_for_use
from transformer_jax.runs import provenance
from transformer_jax.runs.adapting import base_params, base_workdir
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.workdir import CHECKPOINTS, REFERENCE
from transformer_jax.runtime.files import open_regular, replacing
from transformer_jax.tasks.continuation_losses import ContinuationLosses, Split
from transformer_jax.tasks.interface import Task
from transformer_jax.tasks.preference import Preference

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


class _Kept(NamedTuple):
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
        (`runs.adapting`); None: the user named it.
    """

    settings: Settings
    workdir: Path
    task: Preference
    loaded_from: Path | None = None

    def __call__(self, texts: MarkedTexts) -> np.ndarray:
        """UserError where they are not kept, and the run is gone or has changed."""
        path = self.workdir / REFERENCE / f"{_digest(texts)}.npz"
        kept = _read(path, len(texts))
        if all(hosts.gather(kept is not None)):
            assert kept
            return kept.log_probs
        base = hosts.from_primary(self._base)
        found = self._computed(texts)
        hosts.from_primary(lambda: _keep(path, _Kept(found, base)))
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

    def _computed(self, texts: MarkedTexts) -> np.ndarray:
        """Of all texts; the processes of a job compute them together."""
        task = self.task
        shapes = jax.eval_shape(task.init, jax.random.key(0))
        shapes = rules.shard(shapes, mesh_for_use(self.settings.parallel))
        params = base_params(self.settings, shapes, self.loaded_from)
        losses = ContinuationLosses(task.model, task.loss_options)
        size, found = self.settings.decode.batch_size, list[float]()
        with tqdm(total=len(texts), desc="reference", unit="answer", disable=None) as bar:
            for start in range(0, len(texts), _TEXTS_AT_ONCE):
                stop = min(start + _TEXTS_AT_ONCE, len(texts))
                splits = [_split(*texts.text(i)) for i in range(start, stop)]
                scores = losses.score(params, splits, task.max_length, size)
                found += [score.log_prob for score in scores]
                bar.update(stop - start)
        return np.array(found, np.float32)


def _split(tokens: np.ndarray, counted: np.ndarray) -> Split:
    start = int(counted.argmax())
    return tokens[:start].tolist(), tokens[start:].tolist()


def _digest(texts: MarkedTexts) -> str:
    digest = hashlib.sha256()
    for array in (texts.tokens, texts.counted, texts.starts):
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]


def _keep(path: Path, kept: _Kept) -> None:
    """Where that cannot be done, they are computed again next time."""
    try:
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as file:
            np.savez(file, **kept._asdict())
    except OSError as error:
        logger.warning("the reference's log-probabilities are not kept: %s", error)


def _read(path: Path, count: int | None = None) -> _Kept | None:
    """What is kept, `count` numbers where that is given; None where that is not there, or not
    whole: the format has a checksum."""
    most = None if count is None else 4 * count + _BYTES_OF_NAMES
    broken: tuple[type[Exception], ...] = (OSError, ValueError, KeyError, EOFError)
    with contextlib.suppress(*broken, zipfile.BadZipFile), open_regular(path, most) as file:
        arrays: Any = np.load(file, allow_pickle=False)
        kept = _Kept(arrays["log_probs"], str(arrays["base"]))
        if kept.log_probs.dtype == np.float32 and count in (None, len(kept.log_probs)):
            return kept
    return None
