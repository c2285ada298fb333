# SPDX-License-Identifier: Apache-2.0
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

_POSITIONS = "source_positions/table"
_TOKEN_TYPES = "input/token_types"


def warm_start(params: Any, workdir: Path) -> Any:
    """Fresh parameters, replaced where another run has them; see `WarmStart`."""
    return WarmStart(params, workdir).load(params)


class WarmStart:
    """Starts from the parameters of another run's latest checkpoint, where it has them.

    Vocabulary tables may be padded to another number of rows (`model.vocab_multiple`). An
    encoder-decoder can take its encoder from an encoder-only model such as BERT: its table of
    positions may be longer, and the embedding of token type 0, which such a model adds to every
    token of a single text, is added to it. Logs how many parameters were loaded, which keep their
    fresh values, and which parameters of the checkpoint are not in this model.

    Args:
      abstract: shapes of the parameters; values are read onto their shardings.

    Attributes:
      replaced: names of the parameters whose fresh values are not needed.

    Raises:
      UserError: that run has no checkpoint, no parameter of this model, or one of another shape.
    """

    def __init__(self, abstract: Any, workdir: Path):
        folder = open_snapshot(workdir / "checkpoints", items=(PARAMS,)).folder
        checkpoint = saved_arrays(folder, PARAMS)
        wanted = named_leaves(abstract)
        names = {name: _saved_name(name, checkpoint) for name in wanted}
        # `saved` and `wanted` have the names of this model; `checkpoint` has those of the other.
        saved = {name: checkpoint[names[name]] for name in wanted if names[name] in checkpoint}
        refitted = [name for name in saved if _is_refitted(name, saved[name], wanted[name], names)]
        fixed = {name: wanted[name] for name in saved if name not in refitted}
        problems = misfits(saved, fixed)
        if problems:
            raise UserError(f"train.init_from: {folder} does not fit: {first_few(problems)}")
        if not saved:
            raise UserError(f"train.init_from: {folder} has no parameter of this model")
        added = [_TOKEN_TYPES] if _POSITIONS in refitted and _TOKEN_TYPES in checkpoint else []
        logger.info("%d of %d parameter arrays loaded from %s", len(saved), len(wanted), folder)
        log_names("new, with fresh values", [name for name in wanted if name not in saved])
        used = {*(names[name] for name in saved), *added}
        log_names("there, but not in this model", [name for name in checkpoint if name not in used])
        self.replaced = {*fixed}
        self._folder = folder
        self._refitted = refitted
        self._names = {name: names[name] for name in saved}
        saved_names = [*(names[name] for name in refitted), *added]
        # Without a sharding: their rows are fitted on the host before they are placed.
        self._others = {
            name: jax.ShapeDtypeStruct(checkpoint[name].shape, checkpoint[name].dtype)
            for name in saved_names
        }

    def load(self, params: Any) -> Any:
        """The parameters with those of the checkpoint; `params` are fresh values, or shapes where
        they are `replaced`."""
        wanted = named_leaves(params)
        targets = {self._names[name]: wanted[name] for name in self.replaced}
        arrays = read_some_arrays(self._folder, PARAMS, targets | self._others)
        loaded = {name: arrays[saved_name] for name, saved_name in self._names.items()}
        for name in self._refitted:
            loaded[name] = _refitted(name, loaded[name], wanted[name], arrays.get(_TOKEN_TYPES))
        return fill(params, wanted | loaded)


def _saved_name(name: str, checkpoint: Leaves) -> str:
    """The name of the parameter in the checkpoint."""
    part, _, rest = name.partition("/")
    return name if name in checkpoint else f"{_ENCODER_ONLY_NAMES.get(part, part)}/{rest}"


def _is_refitted(name: str, saved: Any, wanted: Any, names: Mapping[str, str]) -> bool:
    """Returns True if the saved rows cannot be used unchanged."""
    if name == _POSITIONS and names[name] != name:
        return saved.shape[1:] == wanted.shape[1:]
    return differ_in_rows(name, saved, wanted)


def _refitted(name: str, saved: Any, wanted: Any, token_types: Any) -> jax.Array:
    if name != _POSITIONS:
        return _with_rows_of(name, saved, wanted)
    table = np.array(wanted)
    rows = min(len(saved), len(wanted))
    token_type = 0 if token_types is None else np.asarray(token_types)[0]
    table[:rows] = np.asarray(saved)[:rows] + token_type
    return _placed(table, wanted)


def _with_rows_of(name: str, saved: Any, wanted: Any) -> jax.Array:
    """A vocabulary table cut or zero-padded to the wanted number of rows.

    Raises:
      UserError: a row that would be cut is not zero.
    """
    table = np.asarray(saved)
    rows = wanted.shape[0]
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
