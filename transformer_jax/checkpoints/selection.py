"""Which checkpoint "latest", "best" or a step names; damaged ones are skipped."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from transformer_jax.checkpoints import manifest, shares
from transformer_jax.checkpoints.step_folder import ITEMS, METRICS, read_score, step_folders
from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts
from transformer_jax.parallel.agreement import Statement
from transformer_jax.runtime.files import METADATA_BYTES

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

    def found() -> tuple[Path, Statement]:
        folder = find_checkpoint(directory, which, items, most, shares.damage)
        return folder, {"checkpoint": folder.name}

    return hosts.in_agreement(found)[0]


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
