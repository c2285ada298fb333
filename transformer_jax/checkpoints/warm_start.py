"""Starting from the parameters of another run."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

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
from transformer_jax.checkpoints.store import agreed_checkpoint
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

_NAMED = 8  # how many parameters a message names


_OF_ENCODER_ONLY = {
    "source_embedding": "embedding",
    "source_norm": "input/norm",
    "source_positions": "input/positions",
}
"""Where a model that is an encoder alone has what an encoder-decoder has for its encoder."""

_POSITIONS, _TOKEN_TYPES = "source_positions/table", "input/token_types"


def warm_start(params: Any, workdir: Path) -> Any:
    """`params` with the values from another run's latest checkpoint where it has the parameter.

    The tables of a vocabulary may be padded otherwise (`model.vocab_multiple`). An encoder-decoder
    takes its encoder from a model that is one alone, as BERT, too: its positions may go further,
    and hold what such a model adds to all tokens of a single text. Logs how much was loaded, which
    parameters keep their fresh values, and which of the checkpoint are not in this model.

    Args:
      params: fresh ones; values are read onto their shardings.
      workdir: of the other run.

    Raises:
      UserError: that run has no checkpoint or no parameter of this model, or one of another shape.
    """
    directory, most = workdir.absolute() / "checkpoints", most_bytes(params)
    folder = agreed_checkpoint(directory, "latest", (PARAMS,), most)
    there, wanted = saved_arrays(folder, PARAMS), named_leaves(params)
    names = {name: _name_there(name, there) for name in wanted}
    saved = {name: there[names[name]] for name in wanted if names[name] in there}
    common = {name: wanted[name] for name in saved}
    refitted = [name for name in common if _is_refitted(name, saved[name], wanted[name], names)]
    fixed = {name: leaf for name, leaf in common.items() if name not in refitted}
    if problems := misfits(saved, fixed):
        raise UserError(f"train.init_from: {folder} does not fit: {first_few(problems)}")
    if not common:
        raise UserError(f"train.init_from: {folder} has no parameter of this model")
    used = {names[name] for name in common}
    added = [_TOKEN_TYPES] if _POSITIONS in refitted and _TOKEN_TYPES in there else []
    logger.info("%d of %d parameter arrays loaded from %s", len(common), len(wanted), folder)
    name_some("new, with fresh values", [name for name in wanted if name not in common])
    left = [name for name in there if name not in {*used, *added}]
    name_some("there, but not in this model", left)
    targets = {names[name]: leaf for name, leaf in fixed.items()}
    targets |= {
        name: _unplaced(there[name]) for name in (*(names[one] for one in refitted), *added)
    }
    found = read_some_arrays(folder, PARAMS, targets)
    read = {name: found[names[name]] for name in common}
    for name in refitted:
        read[name] = _refitted(name, read[name], wanted[name], found.get(_TOKEN_TYPES))
    return fill(params, wanted | read)


def _name_there(name: str, there: Leaves) -> str:
    """What the parameter is called in the checkpoint, if it has it."""
    part, _, rest = name.partition("/")
    return name if name in there else f"{_OF_ENCODER_ONLY.get(part, part)}/{rest}"


def _is_refitted(name: str, saved: Any, wanted: Any, names: Mapping[str, str]) -> bool:
    """Whether the saved rows are not taken as they are."""
    if name == _POSITIONS and names[name] != name:
        return saved.shape[1:] == wanted.shape[1:]
    return differ_in_rows(name, saved, wanted)


def _refitted(name: str, saved: Any, wanted: Any, token_types: Any) -> jax.Array:
    if name != _POSITIONS:
        return _as_long(name, saved, wanted)
    table, rows = np.array(wanted), min(len(saved), len(wanted))
    of_first_text = 0 if token_types is None else np.asarray(token_types)[0]
    table[:rows] = np.asarray(saved)[:rows] + of_first_text
    return _placed(table, wanted)


def _unplaced(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _as_long(name: str, saved: Any, wanted: Any) -> jax.Array:
    """A table with as many rows as wanted: those that pad a vocabulary are 0.

    Raises:
      UserError: rows that are too many hold something.
    """
    table, rows = np.asarray(saved), wanted.shape[0]
    if table[rows:].any():
        raise UserError(
            f"train.init_from: {name} has {len(table)} rows and the model {rows}, and the others "
            "are no padding (model.vocab_multiple)"
        )
    missing = max(rows - len(table), 0)
    fitted = np.pad(table[:rows], [(0, missing), *[(0, 0)] * (table.ndim - 1)])
    return _placed(fitted, wanted)


def _placed(values: np.ndarray, like: Any) -> jax.Array:
    return jax.make_array_from_callback(like.shape, like.sharding, values.__getitem__)


def name_some(what: str, names: Sequence[str]) -> None:
    """Logs names of parameters, not all if they are many, and nothing if there are none."""
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        logger.info("%s: %s%s", what, ", ".join(names[:_NAMED]), more)
