"""Starting from the parameters of another run."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax.checkpoints.selection import agreed_checkpoint
from transformer_jax.checkpoints.step_folder import (
    PARAMS,
    Leaves,
    differ_in_rows,
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

    The tables of a vocabulary may be padded otherwise (`model.vocab_multiple`). Logs how much was
    loaded, which parameters keep their fresh values, and which of the checkpoint are not in this
    model.

    Args:
      params: fresh ones; values are read onto their shardings.
      workdir: of the other run.

    Raises:
      UserError: that run has no checkpoint or no parameter of this model, or one of another shape.
    """
    directory, most = workdir.absolute() / "checkpoints", most_bytes(params)
    folder = agreed_checkpoint(directory, "latest", (PARAMS,), most)
    saved, wanted = saved_arrays(folder, PARAMS), named_leaves(params)
    common = {name: leaf for name, leaf in wanted.items() if name in saved}
    padded = [name for name in common if differ_in_rows(name, saved[name], wanted[name])]
    if problems := misfits(saved, {name: common[name] for name in common if name not in padded}):
        raise UserError(f"train.init_from: {folder} does not fit: {first_few(problems)}")
    if not common:
        raise UserError(f"train.init_from: {folder} has no parameter of this model")
    logger.info("%d of %d parameter arrays loaded from %s", len(common), len(wanted), folder)
    name_some("new, with fresh values", [name for name in wanted if name not in common])
    name_some("there, but not in this model", [name for name in saved if name not in common])
    targets = common | {name: _unplaced(saved[name]) for name in padded}
    read = read_some_arrays(folder, PARAMS, targets)
    return fill(params, wanted | read | {name: _as_long(read, wanted, name) for name in padded})


def _unplaced(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _as_long(read: Leaves, wanted: Leaves, name: str) -> jax.Array:
    """A table with as many rows as wanted: those that pad a vocabulary are 0.

    Raises:
      UserError: rows that are too many hold something.
    """
    table, target = np.asarray(read[name]), wanted[name]
    rows = target.shape[0]
    if table[rows:].any():
        raise UserError(
            f"train.init_from: {name} has {len(table)} rows and the model {rows}, and the others "
            "are no padding (model.vocab_multiple)"
        )
    missing = max(rows - len(table), 0)
    fitted = np.pad(table[:rows], [(0, missing), *[(0, 0)] * (table.ndim - 1)])
    return jax.make_array_from_callback(target.shape, target.sharding, fitted.__getitem__)


def name_some(what: str, names: Sequence[str]) -> None:
    """Logs names of parameters, not all if they are many, and nothing if there are none."""
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        logger.info("%s: %s%s", what, ", ".join(names[:_NAMED]), more)
