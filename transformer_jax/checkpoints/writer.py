"""Saving: steps are written in the background and committed together with their manifest."""

import contextlib
import functools
import itertools
import logging
import shutil
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import (
    PolicyCheckpointInfo,
    PreservationContext,
    PreservationPolicy,
)

from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.step_folder import (
    DATA,
    PARAMS,
    PROVENANCE,
    TRAINING,
    step_folders,
    taking_part,
)
from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts

logger = logging.getLogger(__name__)

_saves = itertools.count()  # of this process, whose others save the same

Kept = Callable[[Sequence[int]], Collection[int]]
"""The steps of a directory, ascending -> those of them to keep."""


class CheckpointWriter:
    """Writes the steps of one directory and deletes those that are not kept.

    All processes of a job share the directory, call each method in the same order, and each write
    the parts of the arrays that they hold; or one of them does all of it (`hosts.single_process`).

    The writer owns the directory: on opening it deletes unfinished steps of killed processes and,
    with a warning, damaged steps, so that neither counts among those kept.

    Args:
      directory: of the steps.
      kept: which steps to keep; the newest is one of them.
      most: bytes that a step of this run may have.

    Raises:
      UserError: the directory cannot be written; also from `save`, `wait` and `close`.
    """

    def __init__(self, directory: Path, kept: Kept, most: int):
        self._directory = directory
        self._kept = kept
        self._processes = hosts.num_processes()
        self._saving: int | None = None
        self._save_name = ""
        self._helper: threading.Thread | None = None
        try:
            hosts.run_on_primary(lambda: directory.mkdir(parents=True, exist_ok=True))
            _delete_damaged(directory, most)
            self._manager = self._open()
        except Exception as error:
            raise UserError(f"cannot write checkpoints in {directory}: {_cause(error)}") from error

    def save(self, step: int, items: dict[str, Any]) -> None:
        """Starts to save `items` (Orbax save arguments by name) once the previous save has ended.

        Nothing happens for a step that is already saved.
        """
        self.wait()
        if step in step_folders(self._directory):
            return
        self._saving, self._save_name = step, f"saves/{next(_saves)}"
        try:
            arguments = ocp.args.Composite(**items)
            self._manager.save(step, args=arguments, force=True)
        except Exception as error:
            raise self._failure(error) from error
        self._help()

    def wait(self) -> None:
        """Blocks until the step being saved is committed."""
        try:
            self._manager.wait_until_finished()
            if self._helper:
                self._helper.join()
        except Exception as error:
            raise self._failure(error) from error

    def prune(self) -> None:
        """Deletes steps that are no longer kept, as when another one has become the best."""
        steps = sorted(self._manager.all_steps())
        for old in hosts.run_on_primary(lambda: sorted({*steps} - {*self._kept(steps)})):
            self._manager.delete(old)

    def close(self) -> None:
        """Waits and ends the background threads."""
        try:
            self.wait()
        except Exception:
            with contextlib.suppress(Exception):  # it would fail in the same way
                self._manager.close()
            raise
        self._manager.close()

    def _open(self) -> ocp.CheckpointManager:
        # Two writers save at once; each needs barriers of its own.
        processes = taking_part(self._directory.name)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=_Preserves(self._kept),
            create=False,
            cleanup_tmp_directories=True,
            multiprocessing_options=processes,
            async_options=ocp.AsyncOptions(
                post_finalization_callback=self._write_manifest,
                # Orbax numbers these operations globally: two writers would mix theirs up.
                create_directories_asynchronously=False,
            ),
        )
        # Compression would take twice the processor time of all else in a save, and spare 8% of the
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
        if self._processes == 1:
            manifest.write(self._partial)
        else:
            manifest.write_in_job(self._partial, self._save_name, self._processes)

    def _help(self) -> None:
        """Sees to it that this process, if it is not the first, hashes its share of the step."""
        if not hosts.is_primary():
            task = (self._partial, self._save_name, jax.process_index(), self._processes)
            self._helper = threading.Thread(
                target=manifest.help_write_in_job, args=task, daemon=True
            )
            self._helper.start()

    @property
    def _partial(self) -> Path:
        """The folder of the step that is being saved, until it is renamed."""
        return self._directory / f"{self._saving}{ocp.path.atomicity_types.TMP_DIR_SUFFIX}"

    def _failure(self, error: Exception) -> Exception:
        return hosts.lost_process(error) or UserError(
            f"cannot save the checkpoint of step {self._saving} in {self._directory}: "
            f"{_cause(error)}; earlier checkpoints are intact"
        )


@dataclass(frozen=True)
class _Preserves(PreservationPolicy):
    kept: Kept

    def should_preserve(
        self, checkpoints: Sequence[PolicyCheckpointInfo], *, context: PreservationContext
    ) -> list[bool]:
        steps = [info.step for info in checkpoints]
        kept = self.kept(steps)
        return [step in kept for step in steps]


def _delete_damaged(directory: Path, most: int) -> None:
    for step in hosts.run_on_primary(lambda: list(step_folders(directory))):
        folder = directory / str(step)
        if problem := manifest.damage_in_job(folder, most=most):
            hosts.run_on_primary(functools.partial(_delete, folder, problem))


def _delete(folder: Path, problem: str) -> None:
    logger.warning("deleting the damaged checkpoint of step %s: %s", folder.name, problem)
    shutil.rmtree(folder)


def _cause(error: Exception) -> str:
    return (str(error) or repr(error)).splitlines()[0]
