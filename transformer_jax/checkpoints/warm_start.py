# SPDX-License-Identifier: Apache-2.0
"""Warm start: a training that starts from the parameters of another run."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.checkpoints import step_folder
from transformer_jax.checkpoints.step_folder import PARAMS, Leaves, MisfitError, named_leaves
from transformer_jax.checkpoints.store import open_snapshot
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

_NAMED = 8  # parameters named in one message

_SIDES = ("source", "target")
_INPUTS = {"embedding": "embedding", "norm": "input/norm", "positions": "input/positions"}
"""Part of a side of an encoder-decoder -> its name in a model of one stack."""

_OF_TARGET_VOCABULARY = ("target_embedding", "projection", "logits_bias")
_POSITIONS = ("source_positions/table", "target_positions/table", "input/positions/table")
_TOKEN_TYPES = "input/token_types"
_SILENT = re.compile(r"/cross_attention/output/")
"""Parameters of an adapted decoder that start at zero: it then computes what it did before."""


class WarmStart:
    """Starts from the parameters of another run's latest checkpoint, where it has them.

    Vocabulary tables may be padded to another number of rows (`model.vocab_multiple`). An
    encoder-decoder can take its encoder from an encoder-only model such as BERT, whose table of
    positions may be longer; the embedding of token type 0, which such a model adds to every token
    of a single text, is added to that table. An encoder-only model can take its encoder from an
    encoder-decoder such as T5. From a decoder-only model such as GPT an encoder-decoder takes both
    stacks (Zhang et al. 2025, T5Gemma); cross-attention is new, and its output starts at zero, so
    that the model at first computes what the decoder did. An encoder-only model takes its layers
    from one, too; they then see later tokens. Where one table serves both sides of the other run,
    it is that of the sources and of the targets here, too. Logs how many parameters were loaded,
    which keep their fresh values, and which parameters of the checkpoint are not in this model.

    Args:
      abstract: shapes of the parameters; values are read onto their shardings.
      workdir: the other run.
      own_target: the targets have a vocabulary that the other run has not, as the trees of parsing;
        its tables are new.

    Attributes:
      replaced: names of the parameters whose fresh values are not needed.

    Raises:
      UserError: that run has no checkpoint, or no parameter of this model.
      MisfitError: it has one of another shape.
    """

    def __init__(self, abstract: Any, workdir: Path, own_target: bool = False):
        folder = open_snapshot(workdir / "checkpoints", items=(PARAMS,)).folder
        checkpoint = step_folder.saved_arrays(folder, PARAMS)
        wanted = named_leaves(abstract)
        others = _saved_names(wanted, checkpoint, own_target)
        names = {name: other for name, other in others.items() if other in checkpoint}
        # `saved` and `wanted` have the names of this model; `checkpoint` has those of the other.
        saved = {name: checkpoint[other] for name, other in names.items()}
        refitted = [name for name in saved if _is_refitted(name, saved[name], wanted[name], names)]
        fixed = {name: wanted[name] for name in saved if name not in refitted}
        problems = step_folder.misfits(saved, fixed)
        if problems:
            raise MisfitError(
                f"train.init_from: {folder} does not fit: {step_folder.first_few(problems)} (the "
                f"section model of {workdir / 'config.json'} has its sizes)"
            )
        if not saved:
            raise UserError(f"train.init_from: {folder} has no parameter of this model")
        has_types = _POSITIONS[0] in refitted and _TOKEN_TYPES in checkpoint
        added = [_TOKEN_TYPES] if has_types else []
        logger.info("%d of %d parameter arrays loaded from %s", len(saved), len(wanted), folder)
        log_names("new, with fresh values", [name for name in wanted if name not in saved])
        used = {*names.values(), *added}
        log_names("there, but not in this model", [name for name in checkpoint if name not in used])
        is_adapted = _is_decoder_only(checkpoint)
        self._silent = [name for name in wanted if is_adapted and _SILENT.search(name)]
        self.replaced = {*fixed, *self._silent}
        self._folder = folder
        self._fixed = fixed
        self._refitted = refitted
        self._names = names
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
        targets = {self._names[name]: wanted[name] for name in self._fixed}
        arrays = step_folder.read_some_arrays(self._folder, PARAMS, targets | self._others)
        first_uses = {saved_name: name for name, saved_name in reversed(self._names.items())}
        loaded = {  # both stacks of an adapted decoder need buffers of their own
            name: arrays[saved] if first_uses[saved] == name else jnp.copy(arrays[saved])
            for name, saved in self._names.items()
        }
        for name in self._silent:
            loaded[name] = _placed(np.zeros(wanted[name].shape, wanted[name].dtype), wanted[name])
        for name in self._refitted:
            loaded[name] = _refitted(name, loaded[name], wanted[name], arrays.get(_TOKEN_TYPES))
        return step_folder.fill(params, wanted | loaded)


def _is_decoder_only(checkpoint: Leaves) -> bool:
    """Returns True if the checkpoint is of a model that has a decoder and neither an encoder nor
    embeddings of a source."""
    parts = {name.partition("/")[0] for name in checkpoint}
    return {"embedding", "decoder"} <= parts and "encoder" not in parts


def _saved_names(wanted: Leaves, checkpoint: Leaves, own_target: bool) -> dict[str, str]:
    """Names of the model's parameters in the checkpoint, which need not have them."""
    other_parts = _other_parts(wanted, checkpoint)
    names = {}
    for name in wanted:
        if own_target and name.partition("/")[0] in _OF_TARGET_VOCABULARY:
            continue
        names[name] = name
        for part, other in other_parts.items():
            if name not in checkpoint and name.startswith(f"{part}/"):
                names[name] = name.replace(part, other, 1)
    return names


def _other_parts(wanted: Leaves, checkpoint: Leaves) -> dict[str, str]:
    """Part of the model -> its name in the checkpoint of another architecture."""
    if _is_decoder_only(checkpoint):
        parts = {f"{side}_{part}": name for side in _SIDES for part, name in _INPUTS.items()}
        return parts | {"encoder": "decoder"}
    if "target_embedding/table" not in checkpoint:  # of an encoder
        parts = {f"source_{part}": name for part, name in _INPUTS.items()}
        is_shared = "source_embedding/table" not in wanted
        return parts | ({"target_embedding": "embedding"} if is_shared else {})
    is_encoder = not any(name.startswith("decoder/") for name in wanted)
    side = "source" if is_encoder else "target"
    parts = {name: f"{side}_{part}" for part, name in _INPUTS.items()}
    if "source_embedding/table" not in checkpoint:  # one table serves both sides
        parts |= {"source_embedding": "target_embedding", "embedding": "target_embedding"}
    return parts


def _is_refitted(name: str, saved: Any, wanted: Any, names: Mapping[str, str]) -> bool:
    """Returns True if the saved rows cannot be used unchanged."""
    if name in _POSITIONS and names[name] != name:
        return bool(saved.shape[1:] == wanted.shape[1:])
    return step_folder.differ_in_rows(name, saved, wanted)


def _refitted(name: str, saved: Any, wanted: Any, token_types: Any) -> jax.Array:
    if name not in _POSITIONS:
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
