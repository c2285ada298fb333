# SPDX-License-Identifier: Apache-2.0
"""Programs of a sweep: rows that differ only in numbers, and their seeds, train in one."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import batched
from pathlib import Path

import jax

from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.runs.replica_numbers import apart_reason, program_fields
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    TOGETHER,
    set_records_aside,
    workdir_within,
)

AT_ONCE = 8
"""Most seeds of several rows in one program, unless the user sets it: memory grows with them."""


def group_rows(configs: Mapping[str, Settings], seeds: int, at_once: int) -> list[list[str]]:
    """Groups rows that one program trains, in the order of their first rows.

    Args:
      seeds: number of seeds of each row.
      at_once: most seeds in one program.
    """
    alike: dict[str, list[str]] = {}
    for name, settings in configs.items():
        fields = {"row": name} if apart_reason(settings) else program_fields(settings)
        alike.setdefault(json.dumps(fields, sort_keys=True, default=str), []).append(name)
    size = max(1, at_once // seeds)
    groups = []
    for names in alike.values():
        for group in batched(names, size):
            if len(group) * seeds % jax.device_count() == 0:
                groups.append(list(group))
            else:  # in one program, some devices would have nothing to do
                groups += [[name] for name in group]
    return groups


def joint_folder(places: Mapping[str, Path]) -> Path:
    """Folder with the joint checkpoint of rows, in that of the first one.

    Args:
      places: the folder of each row's seeds.
    """
    # Named by its rows: a program of other rows cannot resume from its checkpoint.
    digest = hashlib.sha256(json.dumps(list(places)).encode()).hexdigest()[:8]
    return workdir_within(next(iter(places.values())), f"rows_{digest}")


def has_joint_checkpoint(folder: Path) -> bool:
    """Returns True if runs that train together can be resumed from a folder."""
    return bool(step_folders(folder / TOGETHER / CHECKPOINTS))


def has_own_checkpoint(place: Path, seed: str) -> bool:
    """Returns True if a seed in this folder has a checkpoint of its own."""
    return bool(step_folders(place / seed / CHECKPOINTS))


def restart_abandoned(workdir: Path) -> None:
    """Renames the records of a seed that other rows' program has not finished.

    Such a seed has no folder of checkpoints: it now starts again, in another program.
    """
    if not (workdir / CHECKPOINTS).exists():
        set_records_aside(workdir)


def describe_group(names: Sequence[str], seeds: int) -> str:
    """Text for the log about the seeds that one program trains."""
    shown = ", ".join(names)
    return f"training {seeds} seeds of {len(names)} rows in one program: {shown}"
