# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a run: saving, retention, choosing and restoring.

Layout of the directory: `STEP/` is a full checkpoint (see `step_folder`). `snapshots/STEP/` holds
parameters alone, so that an average can cover more steps than there are full checkpoints.
"""

import contextlib
import functools
import itertools
import json
import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from transformer_jax.checkpoints import manifest, step_folder
from transformer_jax.checkpoints.step_folder import (
    DATA,
    ITEMS,
    METRICS,
    PARAMS,
    PROVENANCE,
    TRAINING,
    Leaves,
    fill,
    named_leaves,
    step_folders,
)
from transformer_jax.errors import UserError, reason_of, user_errors
from transformer_jax.parallel import hosts
from transformer_jax.parallel.hosts import Fingerprint
from transformer_jax.ranges import Range, Steps, check_fields
from transformer_jax.runtime.files import remove

logger = logging.getLogger(__name__)

Which = int | str | None
"""A step or its digits, "best", "latest"; None is the latest."""

SNAPSHOTS = "snapshots"

Retention = Callable[[Sequence[int]], Collection[int]]
"""The steps of a directory, ascending -> the steps to keep."""


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save, and how much to keep.

    Attributes:
      every_steps: steps between checkpoints.
      keep: number of latest full checkpoints to keep; the best one is kept in addition.
      keep_params: number of latest parameter-only snapshots to keep, for `--average`.
      asynchronous: write checkpoints while training continues; a kill can then lose the steps of
        one interval plus those taken during the last write. False: wait for each write, so that a
        kill loses one interval at most.

    Raises:
      ValueError: a value out of range.
    """

    every_steps: Steps = 1000
    keep: Annotated[int, Range(1, 10**6)] = 3
    keep_params: Annotated[int, Range(0, 10**6)] = 0
    asynchronous: bool = True  # `async` is a keyword of Python

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Snapshot:
    """One checkpoint, chosen and verified: all that is read from it belongs to one step.

    Checkpoints that appear later, while a training run continues, do not change it.

    Attributes:
      folder: the folder of the step.
      is_shared: all processes read the folder. If not, process 0 reads it and passes the contents
        to the others; all call each method, and each leaf of an abstract tree has its sharding.
    """

    folder: Path
    is_shared: bool = True

    @property
    def step(self) -> int:
        """The number of updates done."""
        return int(self.folder.name)

    @functools.cached_property
    def id(self) -> str:
        """The step and the SHA-256 of the manifest, which identify the checkpoint."""
        return manifest.checkpoint_id(self.folder)

    @functools.cached_property
    def provenance(self) -> dict[str, str]:
        """The run's provenance (`runs.provenance`) at this step; empty if it was not recorded."""
        return self._read_json(step_folder.read_provenance)

    @functools.cached_property
    def data_state(self) -> Any:
        """The state of the data iterator; tuples come back as lists."""
        return self._read_json(step_folder.read_data)

    def params(self, abstract_params: Any) -> Any:
        """Reads the parameters; arguments and errors as of `state`."""
        return fill(abstract_params, self._read_arrays(PARAMS, named_leaves(abstract_params)))

    def require_fit(self, abstract_params: Any) -> None:
        """Raises MisfitError if the parameters have other names, shapes or dtypes."""
        saved = step_folder.saved_arrays(self.folder, PARAMS)
        step_folder.require_fit(self.folder / PARAMS, saved, named_leaves(abstract_params))

    def state(self, abstract_state: Any, fresh: Mapping[str, float] | None = None) -> Any:
        """Reads the whole state, bit for bit as it was saved.

        Args:
          abstract_state: the state's tree of `jax.ShapeDtypeStruct` (or of arrays). The arrays
            get its shardings, whatever devices they were saved from; without a sharding, they are
            put on the first local device.
          fresh: initial values of state fields that may be missing (see
            `step_folder.read_arrays`); parameters are never missing.

        Raises:
          UserError: it cannot be read, or does not fit.
        """
        params, training = step_folder.split_state(abstract_state)
        params = self._read_arrays(PARAMS, params)
        training = self._read_arrays(TRAINING, training, fresh)
        return step_folder.join_state(abstract_state, params, training)

    def average(
        self, count: int, abstract_params: Any, keep: int | None = None
    ) -> tuple[list[int], Any]:
        """The mean, taken in float32, of the last `count` saved parameters up to this step.

        Args:
          abstract_params: as of `state`.
          keep: `checkpoint.keep` of the run. A full checkpoint before the latest `keep` is there
            only because it is the best, whatever was saved between it and them, so it is left out.

        Returns:
          (the steps, newest first; params)

        Raises:
          UserError: there are fewer, or as of `state`.
        """
        directory = self.folder.parent
        full = step_folders(directory)
        latest = sorted(full)[-keep:] if keep else full
        saved = step_folders(directory / SNAPSHOTS) | {step: full[step] for step in latest}
        earlier = [saved[step] for step in sorted(saved, reverse=True) if step < self.step]
        verified = skip_damaged(earlier, (PARAMS,))
        folders = [self.folder, *itertools.islice(verified, max(count - 1, 0))]
        if count < 1 or len(folders) < count:
            raise UserError(
                f"cannot average {count} checkpoints: {directory} holds the parameters of "
                f"{len(earlier) + 1} up to step {self.step}; ask for fewer, or train with a higher "
                "checkpoint.keep_params"
            )
        steps = [int(folder.name) for folder in folders]
        logger.info("averaging the parameters of steps %s", ", ".join(map(str, steps)))
        return steps, fill(abstract_params, _mean(folders, named_leaves(abstract_params)))

    def _read_arrays(
        self, item: str, abstract: Leaves, fresh: Mapping[str, float] | None = None
    ) -> Leaves:
        if self.is_shared:
            return step_folder.read_arrays(self.folder, item, abstract, fresh)
        on_host = {  # arrays without memory for their elements
            name: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
            for name, leaf in abstract.items()
        }
        arrays: list[Leaves] = []  # not a result, which `run_on_primary` would send to all as JSON
        hosts.run_on_primary(
            lambda: arrays.append(step_folder.read_arrays(self.folder, item, on_host, fresh))
        )
        return hosts.arrays_from_primary(arrays.pop() if arrays else None, abstract)

    def _read_json(self, read: Callable[[Path], Any]) -> Any:
        if self.is_shared:
            return read(self.folder)
        return hosts.run_on_primary(lambda: read(self.folder))


def state_id(folder: Path) -> str:
    """The step of a checkpoint and a digest of all of its files but the score, which may come
    later."""
    digest = manifest.item_id(folder, PARAMS, TRAINING, DATA, PROVENANCE)
    return f"step {folder.name}, {digest}"


def open_snapshot(
    directory: Path, which: Which = "latest", items: Collection[str] = ITEMS
) -> Snapshot:
    """Chooses and verifies a checkpoint; arguments and errors as of `find_checkpoint`.

    All processes of a job call it together, and get the same folder or raise the same error.
    """

    def find() -> tuple[Path, Fingerprint]:
        folder = find_checkpoint(directory.absolute(), which, items)
        return folder, {"checkpoint": folder.name}

    return Snapshot(hosts.require_agreement(find))


def find_checkpoint(directory: Path, which: Which, items: Collection[str] = ITEMS) -> Path:
    """The folder of the checkpoint that `which` names, verified against its manifest.

    "best" has the highest score, and is the newest of equals. For "latest" and "best", damaged
    checkpoints are skipped with a warning; a step given by number must be intact.

    Args:
      which: a step or its digits, "best", "latest" or None (the latest).
      items: the items that will be read; only these are verified.

    Raises:
      UserError: there is no such checkpoint, or it is damaged.
    """
    folders = step_folders(directory)
    if not folders:
        raise UserError(f"no checkpoint in {directory}; train there first")
    if which in (None, "latest", "best"):
        newest_first = list(reversed(folders.values()))
        candidates = best_first(newest_first) if which == "best" else newest_first
        if not candidates:
            raise UserError(f"no checkpoint in {directory} has a score; take latest, or a step")
        for folder in skip_damaged(candidates, items):
            return folder
        raise UserError(f"no intact checkpoint in {directory}: every one of them is damaged")
    if not str(which).isdecimal() or int(str(which)) not in folders:
        steps = ", ".join(map(str, folders))
        choices = f"latest, best or one of {steps}"
        raise UserError(f"no checkpoint {which} in {directory}; take {choices}")
    folder = folders[int(str(which))]
    problem = manifest.find_damage_in_job(folder, items)
    if problem:
        raise UserError(f"checkpoint {folder} is damaged: {problem}; take another one")
    return folder


def skip_damaged(
    folders: Iterable[Path],
    items: Collection[str],
    find_damage: Callable[..., str | None] = manifest.find_damage_in_job,
) -> Iterator[Path]:
    """Yields the folders whose `items` are intact; warns about each other one."""
    for folder in folders:
        problem = find_damage(folder, items)
        if problem:
            logger.warning("skipping the damaged checkpoint %s: %s", folder, problem)
        else:
            yield folder


def best_first(newest_first: list[Path]) -> list[Path]:
    """The folders that have a score, the highest first; the newest of equals."""
    scores: dict[Path, float] = {}
    # Orbax asks for the best in a process alone.
    for folder in skip_damaged(newest_first, (METRICS,), manifest.find_damage):
        score = step_folder.read_score(folder)
        if score is not None:
            scores[folder] = score
    return sorted(scores, key=scores.__getitem__, reverse=True)


class CheckpointWriter:
    """Writes the steps of one directory and deletes old ones.

    All processes of a job share the directory and call each method in the same order; each writes
    the parts of the arrays that it holds. Or one process does all of it
    (`hosts.single_process`).

    The writer owns the directory: on opening it deletes unfinished steps of killed processes and,
    with a warning, damaged steps, so that neither counts as a step that is kept.

    Args:
      retention: chooses the steps to keep; the newest must be one of them.

    Raises:
      UserError: the directory cannot be written; also from `save`, `wait` and `close`.
    """

    def __init__(self, directory: Path, retention: Retention):
        self._directory = directory
        self._retention = retention
        self._saving: int | None = None
        try:
            hosts.run_on_primary(lambda: _delete_damaged(directory))
            self._manager = self._open()
        except Exception as error:
            raise UserError(
                f"cannot write checkpoints in {directory}: {reason_of(error)}"
            ) from error

    def save(self, step: int, items: dict[str, Any]) -> None:
        """Starts to save `items` (Orbax save arguments by name) after the previous save has ended.

        A step that is already saved is skipped.
        """
        self.wait()
        if step in step_folders(self._directory):
            return
        self._saving = step
        with self._failing():
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)

    def wait(self) -> None:
        """Blocks until the step being saved is committed."""
        with self._failing():
            self._manager.wait_until_finished()

    def prune(self) -> None:
        """Deletes steps that need no longer be kept, e.g. when another one is now the best."""
        steps = sorted(self._manager.all_steps())
        for step in hosts.run_on_primary(lambda: sorted({*steps} - {*self._retention(steps)})):
            self._manager.delete(step)

    def close(self) -> None:
        """Waits and ends the background threads."""
        try:
            self.wait()
        except Exception:
            with contextlib.suppress(Exception):  # it would fail in the same way
                self._manager.close()
            raise
        self._manager.close()

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """The retention as Orbax asks for it."""
        steps = [info.step for info in checkpoints]
        retained = self._retention(steps)
        return [step in retained for step in steps]

    def _open(self) -> ocp.CheckpointManager:
        # Two writers save at once; each needs barriers of its own.
        processes = step_folder.participants(self._directory.name)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self,
            create=False,
            cleanup_tmp_directories=True,
            multiprocessing_options=processes,
            async_options=ocp.AsyncOptions(
                post_finalization_callback=self._write_manifest,
                # Orbax numbers these operations globally: two writers would mix theirs up.
                create_directories_asynchronously=False,
            ),
        )
        # Compression would take twice the processor time of all the rest of a save, for 8% less
        # size.
        arrays = ocp.PyTreeCheckpointHandler(
            use_compression=False, multiprocessing_options=processes
        )
        json = ocp.JsonCheckpointHandler(multiprocessing_options=processes)
        handlers = {PARAMS: arrays, TRAINING: arrays, DATA: json, PROVENANCE: json}
        return ocp.CheckpointManager(self._directory, options=options, item_handlers=handlers)

    def _write_manifest(self) -> None:
        # Orbax calls this in a background thread of process 0, after all processes have written
        # their items and before it renames the folder: every finished step has its manifest.
        folder = f"{self._saving}{ocp.path.atomicity_types.TMP_DIR_SUFFIX}"
        manifest.write_manifest(self._directory / folder)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise hosts.lost_process(error) or UserError(
                f"cannot save the checkpoint of step {self._saving} in {self._directory}: "
                f"{reason_of(error)}; earlier checkpoints are intact"
            ) from error


def _delete_damaged(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for step, folder in step_folders(directory).items():
        problem = manifest.find_damage(folder)
        if problem:
            logger.warning("deleting the damaged checkpoint of step %d: %s", step, problem)
            remove(folder)


class Checkpoints(contextlib.AbstractContextManager["Checkpoints"]):
    """The checkpoints of a run: saves them, deletes old ones, opens them.

    Reading changes nothing on disk and is safe while another process trains. Everything read has
    been verified against its SHA-256 manifest (`find_checkpoint`).

    Attributes:
      directory: the directory that holds them.
      provenance: what the run is based on, {name: description}; saved with each checkpoint.
    """

    def __init__(self, directory: Path | str, config: CheckpointConfig):
        self.directory = Path(directory).absolute()
        self.provenance: dict[str, str] = {}
        self._config = config
        self._opened: list[CheckpointWriter] = []

    def __exit__(self, *_: object) -> None:
        self.close()

    def snapshot(self, which: Which = "latest", items: Collection[str] = ITEMS) -> Snapshot:
        """Chooses and verifies a checkpoint, once; arguments and errors as of `find_checkpoint`."""
        return open_snapshot(self.directory, which, items)

    def save(self, step: int, state: Any, data_state: Any) -> None:
        """Saves a step, in the background if the config says so.

        The arrays may be donated as soon as this returns. A step that is already saved is skipped.

        Args:
          state: a tree of arrays with the parameters at its `params`. Random keys are given as
            their data (`jax.random.key_data`). NumPy arrays must not change afterwards.
          data_state: the state of the data iterator; JSON must be able to hold it.

        Raises:
          UserError: this save, or the one before, failed (disk full, no permission ...).
          TypeError: JSON cannot hold `data_state`.
        """
        params, training = step_folder.split_state(jax.tree.map(_detached, state))
        items = {
            PARAMS: ocp.args.PyTreeSave(params),
            TRAINING: ocp.args.PyTreeSave(training),
            # A copy: the iterator continues while this is written.
            DATA: ocp.args.JsonSave(json.loads(json.dumps(data_state))),
            PROVENANCE: ocp.args.JsonSave(dict(self.provenance)),
        }
        full, *snapshots = self._writers()
        full.save(step, items)
        for writer in snapshots:
            writer.save(step, {PARAMS: items[PARAMS]})
        if not self._config.asynchronous:
            self.wait()

    def save_params(self, step: int, params: Any) -> None:
        """Saves parameters alone, such as published ones; waits until they are on disk.

        The step can be used and started from, but training cannot be resumed from it. Errors as of
        `save`.

        Args:
          params: a tree of jax arrays.
        """
        provenance = ocp.args.JsonSave(dict(self.provenance))
        items = {PARAMS: ocp.args.PyTreeSave(named_leaves(params)), PROVENANCE: provenance}
        self._writers()[0].save(step, items)
        self.wait()

    def has_params_only(self) -> bool:
        """Returns True if the newest step has no training state to resume from."""
        folders = step_folders(self.directory)
        return bool(folders) and not (folders[max(folders)] / TRAINING).exists()

    def score(self, step: int, score: float) -> None:
        """Stores the score of a saved step, higher is better; waits until that step is on disk.

        A step without a score, or with a score of NaN, is never the best.

        Raises:
          UserError: the save failed, or the score cannot be written.
        """
        self.wait()
        if math.isnan(score):
            return
        folder = self.directory / str(step)
        with user_errors(f"cannot keep the score of {folder}", kinds=OSError):
            hosts.run_on_primary(lambda: step_folder.write_score(folder, score))
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

    def newest_id(self) -> str | None:
        """`state_id` of the newest finished step, in a process that has the directory."""
        folders = step_folders(self.directory)
        return state_id(folders[max(folders)]) if folders else None

    def _writers(self) -> list[CheckpointWriter]:
        # Opened by the first save, since reading must not touch the directory.
        if not self._opened:
            writers = [CheckpointWriter(self.directory, self._latest_and_best)]
            count = self._config.keep_params
            if count:
                snapshots = self.directory / SNAPSHOTS
                writers.append(CheckpointWriter(snapshots, lambda steps: steps[-count:]))
            self._opened = writers
        return self._opened

    def _latest_and_best(self, steps: Sequence[int]) -> set[int]:
        folders = step_folders(self.directory)
        newest_first = [folders[step] for step in reversed(steps) if step in folders]
        best = [int(folder.name) for folder in best_first(newest_first)[:1]]
        return {*steps[-self._config.keep :], *best}


def _mean(folders: list[Path], abstract: Leaves) -> Leaves:
    total: Leaves = {}
    for folder in folders:
        for name, leaf in step_folder.read_arrays(folder, PARAMS, abstract).items():
            total[name] = total.get(name, 0) + leaf.astype(jnp.float32)
    return {name: (total[name] / len(folders)).astype(abstract[name].dtype) for name in abstract}


def _detached(leaf: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
    if isinstance(leaf, np.ndarray):
        return leaf  # of the caller, who does not change it
    # Orbax writes a CPU array from its own memory, in the background: a step that donates the array
    # would have to wait. From other devices Orbax copies to the host before it returns.
    on_cpu = all(device.platform == "cpu" for device in leaf.devices())
    return jnp.copy(leaf) if on_cpu else leaf


class PrimaryCheckpoints(Checkpoints):
    """Checkpoints in a directory that only process 0 of a job has.

    All processes call each method. The whole state passes through the memory and the network of
    process 0.
    """

    def snapshot(self, which: Which = "latest", items: Collection[str] = ITEMS) -> Snapshot:
        path = hosts.run_on_primary(lambda: str(find_checkpoint(self.directory, which, items)))
        return Snapshot(Path(path), is_shared=False)

    def save(self, step: int, state: Any, data_state: Any) -> None:
        on_host = hosts.arrays_to_primary(state)
        hosts.run_on_primary(functools.partial(super().save, step, on_host, data_state))

    def score(self, step: int, score: float) -> None:
        hosts.run_on_primary(functools.partial(super().score, step, score))

    def wait(self) -> None:
        hosts.run_on_primary(super().wait)

    def close(self) -> None:
        with hosts.single_process():  # each process by itself
            super().close()

    def latest_step(self) -> int | None:
        return hosts.run_on_primary(super().latest_step)
