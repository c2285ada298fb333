"""Warm start: a training that starts from the parameters of another run."""

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
from transformer_jax.checkpoints.store import open_snapshot
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

_NAMED = 8  # parameters named in one message

_ENCODER_ONLY_NAMES = {
    "source_embedding": "embedding",
    "source_norm": "input/norm",
    "source_positions": "input/positions",
}
"""Parameter of an encoder-decoder -> its name in an encoder-only model."""

_POSITIONS, _TOKEN_TYPES = "source_positions/table", "input/token_types"


def warm_start(params: Any, workdir: Path) -> Any:
    """Replaces fresh parameters by those of another run's latest checkpoint, where it has them.

    Vocabulary tables may be padded to another number of rows (`model.vocab_multiple`). An
    encoder-decoder can take its encoder from an encoder-only model such as BERT: its table of
    positions may be longer, and the embedding of token type 0, which such a model adds to every
    token of a single text, is added to it. Logs how many parameters were loaded, which keep their
    fresh values, and which parameters of the checkpoint are not in this model.

    Args:
      params: the fresh parameters; values are read onto their shardings.
      workdir: the workdir of the other run.

    Raises:
      UserError: that run has no checkpoint, no parameter of this model, or one of another shape.
    """
    folder = open_snapshot(workdir / "checkpoints", items=(PARAMS,), most=most_bytes(params)).folder
    there, wanted = saved_arrays(folder, PARAMS), named_leaves(params)
    names = {name: _saved_name(name, there) for name in wanted}
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
    log_names("new, with fresh values", [name for name in wanted if name not in common])
    left = [name for name in there if name not in {*used, *added}]
    log_names("there, but not in this model", left)
    targets = {names[name]: leaf for name, leaf in fixed.items()}
    targets |= {
        name: _unplaced(there[name]) for name in (*(names[one] for one in refitted), *added)
    }
    found = read_some_arrays(folder, PARAMS, targets)
    read = {name: found[names[name]] for name in common}
    for name in refitted:
        read[name] = _refitted(name, read[name], wanted[name], found.get(_TOKEN_TYPES))
    return fill(params, wanted | read)


def _saved_name(name: str, there: Leaves) -> str:
    """The name of the parameter in the checkpoint."""
    part, _, rest = name.partition("/")
    return name if name in there else f"{_ENCODER_ONLY_NAMES.get(part, part)}/{rest}"


def _is_refitted(name: str, saved: Any, wanted: Any, names: Mapping[str, str]) -> bool:
    """Returns True if the saved rows cannot be used unchanged."""
    if name == _POSITIONS and names[name] != name:
        return saved.shape[1:] == wanted.shape[1:]
    return differ_in_rows(name, saved, wanted)


def _refitted(name: str, saved: Any, wanted: Any, token_types: Any) -> jax.Array:
    if name != _POSITIONS:
        return _with_rows_of(name, saved, wanted)
    table, rows = np.array(wanted), min(len(saved), len(wanted))
    token_type = 0 if token_types is None else np.asarray(token_types)[0]
    table[:rows] = np.asarray(saved)[:rows] + token_type
    return _placed(table, wanted)


def _unplaced(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _with_rows_of(name: str, saved: Any, wanted: Any) -> jax.Array:
    """A vocabulary table cut or zero-padded to the wanted number of rows.

    Raises:
      UserError: a row that would be cut is not zero.
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


def log_names(what: str, names: Sequence[str]) -> None:
    """Logs the first of these names and the number of the others; nothing if there are none."""
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        logger.info("%s: %s%s", what, ", ".join(names[:_NAMED]), more)
