# SPDX-License-Identifier: Apache-2.0
"""The user's own source-target pairs: two aligned files, tab-separated lines, or JSON lines."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.conversations.turns import require_read
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, LinePairs, Selection
from transformer_jax.data.files.lines import TextLines, configured_paths
from transformer_jax.data.files.rows import open_columns, open_rows, select_rows, text_of
from transformer_jax.data.files.table import read_table
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

_SIDES = ("source", "target")


def open_parallel_text(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of `parallel_text`, one corpus per pair of aligned files.

    Raises:
      UserError: the fields do not list equally many files, or match different ones, or one cannot
        be used.
    """
    fields = [f"{split}_source", f"{split}_target"]
    configured = [field for field in fields if getattr(config, field)]
    if len(configured) == 1:
        (missing,) = {*fields} - {*configured}
        raise UserError(
            f"data.{missing} is not set, but data.{configured[0]} is: files go in pairs"
        )
    sources, targets = (configured_paths(config, field) for field in fields)
    if len(sources) != len(targets):
        raise UserError(
            f"data.{fields[0]} names {len(sources)} files, data.{fields[1]} {len(targets)}; "
            "file i of one must be aligned with file i of the other"
        )
    matched = [
        _matched_parts(getattr(config, field), paths)
        for field, paths in zip(fields, (sources, targets), strict=True)
    ]
    if not {*matched[0]}.isdisjoint(matched[1]):  # else the names have the language in them
        for source, target, *parts in zip(sources, targets, *matched, strict=True):
            if parts[0] != parts[1]:
                raise UserError(
                    f"data.{fields[0]} and data.{fields[1]} match different files: {source} would "
                    f"be aligned with {target}; add the files that are missing, or list all"
                )
    # A file may be the source of several targets, or be named on both sides.
    pairs = dict.fromkeys(zip(sources, targets, strict=True))
    return [open_aligned(pair, split) for pair in pairs]


def _matched_parts(pattern: str, paths: Sequence[str]) -> list[str]:
    """What the "*" in the name of a single pattern stands for in each file; empty for others."""
    before, *after = Path(pattern).name.split("*")
    if len(after) != 1 or "," in pattern:
        return []
    return [Path(path).name.removeprefix(before).removesuffix(after[0]) for path in paths]


def open_aligned(paths: Sequence[str], split: str) -> Corpus:
    """Opens two aligned files, source and target; training drops blank lines."""
    return drop_blank(read_aligned(*paths), split, " and ".join(paths))


def read_aligned(source_path: str, target_path: str, *, once: bool = False) -> Corpus:
    """Pairs line i of one file with line i of the other.

    Args:
      source_path, target_path: text files, plain, .gz or .zst.
      once: allow pipes, as `TextLines`.

    Raises:
      UserError: a file cannot be read, or the numbers of lines differ.
    """
    sources = TextLines(source_path, once=once)
    targets = TextLines(target_path, once=once)
    if len(sources) != len(targets):
        raise UserError(
            f"{source_path} has {len(sources)} lines but {target_path} has {len(targets)}: "
            "line i of one must be the translation of line i of the other"
        )
    return LinePairs(sources, targets)


def read_tsv(path: str, split: str = "all", on_bad_row: str = "stop") -> Corpus:
    """Reads a file of lines SOURCE<tab>TARGET.

    Raises:
      UserError: it cannot be read, or a line does not have two columns (as `select_rows`).
    """
    rows = open_columns(path, _SIDES, delimiter="\t")
    return read_table(rows, dict.fromkeys(_SIDES), split, on_bad_row)


def read_json_lines(path: str, split: str = "all", on_bad_row: str = "stop") -> Corpus:
    """Reads a file of objects {"source": text, "target": text}. Raises as `open_rows` and
    `select_rows`."""
    return select_rows(open_rows(path), _pair_example, split, on_bad_row)


def drop_blank(pairs: Corpus, split: str, name: str) -> Corpus:
    """Drops pairs with a blank side from the training split, and logs their number; evaluation
    keeps every pair.

    Args:
      name: describes the files.

    Raises:
      UserError: no pair is left.
    """
    if split != "train":
        return pairs
    indices = np.flatnonzero(_text_mask(pairs))
    if not len(indices):
        raise UserError(f"no line has text on both sides in {name}")
    num_blank = len(pairs) - len(indices)
    if not num_blank:
        return pairs
    message = "left out %d of %d pairs of %s: no text on one side or on both"
    logger.warning(message, num_blank, len(pairs), name)
    return Selection(pairs, indices)


def _pair_example(row: Any) -> Example:
    if not isinstance(row, Mapping) or any(side not in row for side in _SIDES):
        raise ValueError('write {"source": text, "target": text}')
    require_read(row, _SIDES)
    return {side: text_of(row[side], f'"{side}"') for side in _SIDES}


def _text_mask(pairs: Corpus) -> np.ndarray:
    """Mask of the pairs that have text on both sides, bool [N]."""
    match pairs:
        case LinePairs(TextLines() as sources, TextLines() as targets):  # without decoding lines
            return ~(sources.blank_mask() | targets.blank_mask())
    mask = (bool(pair["source"].strip() and pair["target"].strip()) for pair in pairs)
    return np.fromiter(mask, bool, len(pairs))
