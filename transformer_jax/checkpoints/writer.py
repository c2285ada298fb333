# SPDX-License-Identifier: Apache-2.0
"""Writing of checkpoints, in the background; each step is committed with its manifest."""

import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    participants,
    step_folders,
)
from transformer_jax.errors import UserError, reason_of
from transformer_jax.parallel import hosts
from transformer_jax.runtime.files import remove

logger = logging.getLogger(__name__)

Retention = Callable[[Sequence[int]], Collection[int]]
"""The steps of a directory, ascending -> the steps to keep."""


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
        try:
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)
        except Exception as error:
            raise self._failure(error) from error

    def wait(self) -> None:
        """Blocks until the step being saved is committed."""
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise self._failure(error) from error

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

    def _open(self) -> ocp.CheckpointManager:
        # Two writers save at once; each needs barriers of its own.
        processes = participants(self._directory.name)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=_RetentionPolicy(self._retention),
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

    def _failure(self, error: Exception) -> Exception:
        return hosts.lost_process(error) or UserError(
            f"cannot save the checkpoint of step {self._saving} in {self._directory}: "
            f"{reason_of(error)}; earlier checkpoints are intact"
        )


@dataclass(frozen=True)
class _RetentionPolicy(PreservationPolicy):
    """A `Retention` as Orbax calls it."""

    retention: Retention

    def should_preserve(
        self, checkpoints: Sequence[PolicyCheckpointInfo], *, context: PreservationContext
    ) -> list[bool]:
        steps = [info.step for info in checkpoints]
        retained = self.retention(steps)
        return [step in retained for step in steps]


def _delete_damaged(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for step, folder in step_folders(directory).items():
        problem = manifest.find_damage(folder)
        if problem:
            logger.warning("deleting the damaged checkpoint of step %d: %s", step, problem)
            remove(folder)
