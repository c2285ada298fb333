"""Starting from the parameters of another run."""

import logging
from pathlib import Path
from typing import Any

from transformer_jax.checkpoints.selection import agreed_checkpoint
from transformer_jax.checkpoints.step_folder import (
    PARAMS,
    Leaves,
    fill,
    first_few,
    misfits,
    most_bytes,
    named_leaves,
    read_some_arrays,
    saved_arrays,
)
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

_NAMED = 8  # how many parameters a message names


def warm_start(params: Any, workdir: Path) -> Any:
    """`params` with the values from another run's latest checkpoint where it has the parameter.

    Logs how much was loaded, which parameters keep their fresh values, and which of the checkpoint
    are not in this model.

    Args:
      params: fresh ones; values are read onto their shardings.
      workdir: of the other run.

    Raises:
      UserError: that run has no checkpoint or no parameter of this model, or one of another shape.
    """
    directory, most = workdir.absolute() / "checkpoints", most_bytes(params)
    folder = agreed_checkpoint(directory, "latest", (PARAMS,), most)
    saved, wanted = saved_arrays(folder, PARAMS), named_leaves(params)
    if problems := misfits(saved, wanted):
        raise UserError(f"train.init_from: {folder} does not fit: {first_few(problems)}")
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
