"""Starting from the parameters of another run."""

import logging
from pathlib import Path
from typing import Any

from transformer_jax.checkpoints.selection import find_checkpoint
from transformer_jax.checkpoints.step_folder import (
    PARAMS,
    Leaves,
    fill,
    misfits,
    named_leaves,
    read_some_arrays,
    saved_arrays,
)
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

_NAMED = 8  # parameters that one message names


def warm_start(params: Any, workdir: Path) -> Any:
    """`params` with the values of another run's latest checkpoint wherever both have a parameter.

    Says what was loaded, what is new (keeps its fresh value) and what was left out (is not in this
    model).

    Args:
      params: fresh ones; values are read onto their shardings.
      workdir: of the other run.

    Raises:
      UserError: it has no checkpoint, nothing in common, or a parameter has another shape there.
    """
    folder = find_checkpoint(workdir.absolute() / "checkpoints", "latest", (PARAMS,))
    saved, wanted = saved_arrays(folder, PARAMS), named_leaves(params)
    if problems := misfits(saved, wanted):
        raise UserError(f"train.init_from: {folder} does not fit: {'; '.join(problems)}")
    common = {name: leaf for name, leaf in wanted.items() if name in saved}
    if not common:
        raise UserError(f"train.init_from: {folder} has no parameter of this model")
    logger.info("%d of %d parameter arrays loaded from %s", len(common), len(wanted), folder)
    _tell("new, with fresh values", wanted, common)
    _tell("there, but not in this model", saved, common)
    return fill(params, wanted | read_some_arrays(folder, PARAMS, common))


def _tell(what: str, names: Leaves, common: Leaves) -> None:
    if others := [name for name in names if name not in common]:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        logger.info("%s: %s%s", what, ", ".join(others[:_NAMED]), more)
