"""Checkpoints of a run: what is saved, what is kept, and how it is read back.

Layout of the directory: `STEP/` is a full checkpoint (see `step_folder`), `snapshots/STEP/` holds
parameters alone, so that the mean can be taken over more steps than have full checkpoints.
"""

import itertools
import json
import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.config import CheckpointConfig
from transformer_jax.checkpoints.step_folder import (
    DATA,
    ITEMS,
    METRICS,
    PARAMS,
    PROVENANCE,
    TRAINING,
    Leaves,
    fill,
    join_state,
    most_bytes,
    named_leaves,
    read_arrays,
    read_data,
    read_provenance,
    read_score,
    split_state,
    step_folders,
    write_score,
)
from transformer_jax.checkpoints.writer import CheckpointWriter, Kept
from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts
from transformer_jax.parallel.hosts import Fingerprint
from transformer_jax.runtime.files import METADATA_BYTES

# FOLDED checkpoints.selection: Which checkpoint "latest", "best" or a step names; damaged ones are
# skipped.


logger = logging.getLogger(__name__)

Damage = Callable[[Path, Collection[str], int | None], str | None]
"""As `manifest.damage`."""

Which = int | str | None
"""A step or its digits, "best", "latest"; None is the latest."""


def agreed_checkpoint(
    directory: Path, which: Which, items: Collection[str] = ITEMS, most: int | None = None
) -> Path:
    """As `find_checkpoint`, in all processes of a job together, each of which reads its share of
    the files: they get the same folder, or raise the same error."""

    def found() -> tuple[Path, Fingerprint]:
        folder = find_checkpoint(directory, which, items, most, manifest.damage_in_job)
        return folder, {"checkpoint": folder.name}

    return hosts.require_agreement(found)[0]


def find_checkpoint(
    directory: Path,
    which: Which,
    items: Collection[str] = ITEMS,
    most: int | None = None,
    damage: Damage = manifest.damage,
) -> Path:
    """The folder of the checkpoint that `which` names, its `items` compared with their manifest.

    "best" has the highest score, and is the newest of equals. For "latest" and "best", damaged
    checkpoints are skipped with a warning; a step named by its number must be intact.

    Args:
      directory: of the checkpoints.
      which: a step or its digits, "best", "latest" or None (the latest).
      items: what is going to be read of it.
      most: bytes that it may have, as `manifest.damage`.
      damage: how the files are compared.

    Raises:
      UserError: there is no such checkpoint, or it is damaged.
    """
    folders = step_folders(directory)
    if not folders:
        raise UserError(f"no checkpoint in {directory}; train there first")
    newest_first = list(reversed(folders.values()))
    match which:
        case None | "latest":
            candidates = newest_first
        case "best":
            candidates = best_first(newest_first)
            if not candidates:
                raise UserError(f"no checkpoint in {directory} has a score; take latest, or a step")
        case _:
            return _named(directory, folders, str(which), lambda one: damage(one, items, most))
    for folder in intact(candidates, items, most, damage):
        return folder
    raise UserError(f"no intact checkpoint in {directory}: every one of them is damaged")


def intact(
    folders: Iterable[Path],
    items: Collection[str],
    most: int | None = None,
    damage: Damage = manifest.damage,
) -> Iterator[Path]:
    """Yields the folders whose `items` are as they were written; warns about each other one."""
    for folder in folders:
        if problem := damage(folder, items, most):
            logger.warning("skipping the damaged checkpoint %s: %s", folder, problem)
        else:
            yield folder


def _named(
    directory: Path,
    folders: dict[int, Path],
    which: str,
    damage: Callable[[Path], str | None],
) -> Path:
    if not which.isdecimal() or int(which) not in folders:
        steps = ", ".join(map(str, folders))
        raise UserError(f"no checkpoint {which} in {directory}; take latest, best, or of {steps}")
    folder = folders[int(which)]
    if problem := damage(folder):
        raise UserError(f"checkpoint {folder} is damaged: {problem}; take another one")
    return folder


def best_first(newest_first: list[Path]) -> list[Path]:
    """The folders that have a score, the highest first; the newest of equals."""
    scores: dict[Path, float] = {}
    for folder in intact(newest_first, (METRICS,), METADATA_BYTES):
        score = read_score(folder)
        if score is not None:
            scores[folder] = score
    return sorted(scores, key=scores.__getitem__, reverse=True)


class Checkpoints:
    """The checkpoints in `directory`.

    Reading changes nothing on disk and is safe while another process trains. Whatever is read has
    been compared with its SHA-256 manifest. `selection.find_checkpoint` says how `which` names a
    checkpoint, and how damaged ones are treated.

    Attributes:
      directory: where they lie.
      provenance: what the run rests on, texts by name; kept in each checkpoint that is saved.
    """

    def __init__(self, directory: Path | str, config: CheckpointConfig):
        self.directory = Path(directory).absolute()
        self.provenance: dict[str, str] = {}
        self._snapshots = self.directory / "snapshots"
        self._config = config
        self._opened: list[CheckpointWriter] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save(self, step: int, state: Any, data_state: Any) -> None:
        """Saves, in the background if the config says so; the arrays may be donated as soon as this
        returns. Nothing happens for a step that is already saved.

        Args:
          step: updates done.
          state: a tree of arrays with the parameters at its `params`. Random keys go in as their
            data (`jax.random.key_data`). NumPy arrays must stay as they are.
          data_state: where the data iterator stands; anything that JSON can hold.

        Raises:
          UserError: this save, or the one before, failed (disk full, no permission ...).
          TypeError: JSON cannot hold `data_state`.
        """
        params, training = split_state(jax.tree.map(_detached, state))
        items = {
            PARAMS: ocp.args.PyTreeSave(params),
            TRAINING: ocp.args.PyTreeSave(training),
            # A copy: the iterator goes on while this is written.
            DATA: ocp.args.JsonSave(json.loads(json.dumps(data_state))),
            PROVENANCE: ocp.args.JsonSave(dict(self.provenance)),
        }
        full, *snapshots = self._writers(most_bytes(state))
        full.save(step, items)
        for writer in snapshots:
            writer.save(step, {PARAMS: items[PARAMS]})
        if not self._config.asynchronous:
            self.wait()

    def save_params(self, step: int, params: Any) -> None:
        """Saves parameters alone, such as published ones: a step to use and to start from, but not
        to go on from. Waits until it is on disk; errors as for `save`.

        Args:
          step: their number.
          params: a tree of jax arrays.
        """
        provenance = ocp.args.JsonSave(dict(self.provenance))
        items = {PARAMS: ocp.args.PyTreeSave(named_leaves(params)), PROVENANCE: provenance}
        self._writers(most_bytes(params))[0].save(step, items)
        self.wait()

    def holds_params_alone(self) -> bool:
        """Whether the newest step can be used and started from, but not be gone on from."""
        folders = step_folders(self.directory)
        return bool(folders) and not (folders[max(folders)] / TRAINING).exists()

    def score(self, step: int, score: float) -> None:
        """Keeps how good a saved step is, higher is better; waits until that step is on disk.

        A step without a score, or with one of NaN, is no candidate for the best.

        Raises:
          UserError: the save, or keeping the score, failed.
        """
        self.wait()
        if math.isnan(score):
            return
        folder = self.directory / str(step)
        try:
            hosts.run_on_primary(lambda: write_score(folder, score))
        except OSError as error:
            raise UserError(f"cannot keep the score of {folder}: {error}") from error
        for writer in self._opened:
            writer.prune()

    def wait(self) -> None:
        """Blocks until all saves are on disk; raises UserError if one failed."""
        for writer in self._opened:
            writer.wait()

    def close(self) -> None:
        """Waits and ends the background threads; raises UserError as `wait` does."""
        while self._opened:
            self._opened.pop().close()

    def latest_step(self) -> int | None:
        """The newest finished step, damaged or not; None if there is none."""
        return max(step_folders(self.directory), default=None)

    def restore(
        self, which: Which, abstract_state: Any, fresh: Mapping[str, float] | None = None
    ) -> tuple[int, Any, Any]:
        """Reads a whole checkpoint, bit for bit as it was saved.

        Args:
          which: a step, "best", "latest" or None (the latest).
          abstract_state: the state's tree of `jax.ShapeDtypeStruct` (or of arrays). The arrays
            come back with its shardings, whatever devices they were saved from; without a
            sharding, on the first local device.
          fresh: as of `step_folder.read_arrays`, of what is not among the parameters.

        Returns:
          (step, state, data_state)

        Raises:
          UserError: there is no such checkpoint, it is damaged, or it does not fit.
        """
        folder = agreed_checkpoint(self.directory, which, most=most_bytes(abstract_state))
        params, training = split_state(abstract_state)
        params = read_arrays(folder, PARAMS, params)
        training = read_arrays(folder, TRAINING, training, fresh)
        return int(folder.name), join_state(abstract_state, params, training), read_data(folder)

    def data_state(self, which: Which) -> Any:
        """The state of the data iterator; `which` and errors as for `restore`."""
        return read_data(find_checkpoint(self.directory, which))

    def kept_provenance(self, which: Which) -> dict[str, str]:
        """What the run rested on when that checkpoint was saved, empty where it does not say;
        `which` and errors as for `restore`."""
        folder = find_checkpoint(self.directory, which, (PROVENANCE,), METADATA_BYTES)
        return read_provenance(folder)

    def restore_params(self, which: Which, abstract_params: Any) -> tuple[int, Any]:
        """Reads the parameters alone, (step, params); arguments and errors as for `restore`."""
        folder = agreed_checkpoint(self.directory, which, (PARAMS,), most_bytes(abstract_params))
        params = read_arrays(folder, PARAMS, named_leaves(abstract_params))
        return int(folder.name), fill(abstract_params, params)

    def average(self, count: int, which: Which, abstract_params: Any) -> tuple[list[int], Any]:
        """The mean, taken in float32, of the last `count` saved parameters up to step `which`.

        Returns:
          (the steps, newest first; params)

        Raises:
          UserError: there are fewer, or as for `restore`.
        """
        most = most_bytes(abstract_params)
        last = int(agreed_checkpoint(self.directory, which, (PARAMS,), most).name)
        kept = step_folders(self._snapshots) | step_folders(self.directory)
        newest_first = [kept[step] for step in sorted(kept, reverse=True) if step <= last]
        whole = intact(newest_first, (PARAMS,), most, manifest.damage_in_job)
        chosen = list(itertools.islice(whole, max(count, 0)))
        if count < 1 or len(chosen) < count:
            raise UserError(
                f"cannot average {count} checkpoints: {self.directory} holds the parameters of "
                f"{len(newest_first)} up to step {last}; ask for fewer, or train with a higher "
                "checkpoint.keep_params"
            )
        steps = [int(folder.name) for folder in chosen]
        logger.info("averaging the parameters of steps %s", ", ".join(map(str, steps)))
        return steps, fill(abstract_params, _mean(chosen, named_leaves(abstract_params)))

    def _writers(self, most: int) -> list[CheckpointWriter]:
        # Opened by the first save, since reading must not touch the directory.
        if not self._opened:
            kept: dict[Path, Kept] = {self.directory: self._latest_and_best}
            if self._config.keep_params:
                kept[self._snapshots] = lambda steps: steps[-self._config.keep_params :]
            self._opened = [CheckpointWriter(*item, most) for item in kept.items()]
        return self._opened

    def _latest_and_best(self, steps: Sequence[int]) -> set[int]:
        folders = step_folders(self.directory)
        newest_first = [folders[step] for step in reversed(steps) if step in folders]
        best = [int(folder.name) for folder in best_first(newest_first)[:1]]
        return {*steps[-self._config.keep :], *best}


def _mean(folders: list[Path], abstract: Leaves) -> Leaves:
    total: Leaves = {}
    for folder in folders:
        for name, leaf in read_arrays(folder, PARAMS, abstract).items():
            total[name] = total.get(name, 0) + leaf.astype(jnp.float32)
    return {name: (total[name] / len(folders)).astype(abstract[name].dtype) for name in abstract}


def _detached(leaf: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
    if isinstance(leaf, np.ndarray):
        return leaf  # of the caller, who does not change it
    # Orbax writes a CPU array from its own memory, in the background: a step that donates the array
    # would have to wait. From other devices Orbax copies to the host before it returns.
    on_cpu = all(device.platform == "cpu" for device in leaf.devices())
    return jnp.copy(leaf) if on_cpu else leaf


# FOLDED checkpoints.primary_store: Checkpoints in a directory that process 0 of a job has, and the
# others have not.


class PrimaryCheckpoints(Checkpoints):
    """As `Checkpoints`, of a training; all processes call each of these methods.

    Process 0 writes and reads: the whole state passes through its memory and its network.
    """

    def save(self, step: int, state: Any, data_state: Any) -> None:
        """As `Checkpoints.save`."""
        whole, save = hosts.arrays_to_primary(state), super().save
        hosts.run_on_primary(lambda: save(step, whole, data_state))

    def score(self, step: int, score: float) -> None:
        """As `Checkpoints.score`."""
        keep = super().score
        hosts.run_on_primary(lambda: keep(step, score))

    def wait(self) -> None:
        """As `Checkpoints.wait`."""
        hosts.run_on_primary(super().wait)

    def close(self) -> None:
        """As `Checkpoints.close`; each process by itself."""
        with hosts.single_process():
            super().close()

    def latest_step(self) -> int | None:
        """As `Checkpoints.latest_step`."""
        return hosts.run_on_primary(super().latest_step)

    def restore(
        self, which: Which, abstract_state: Any, fresh: Mapping[str, float] | None = None
    ) -> tuple[int, Any, Any]:
        """As `Checkpoints.restore`; each leaf of `abstract_state` has its sharding."""
        restore, on_host = super().restore, jax.tree.map(_without_memory, abstract_state)
        found: list[Any] = []

        def read() -> tuple[int, Any]:
            step, state, data_state = restore(which, on_host, fresh)
            found.append(state)
            return step, data_state

        step, data_state = hosts.run_on_primary(read)
        state = hosts.arrays_from_primary(found.pop() if found else None, abstract_state)
        return step, state, data_state


def _without_memory(leaf: Any) -> np.ndarray:
    """A NumPy array with the shape and dtype of another one."""
    return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
