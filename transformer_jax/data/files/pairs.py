"""The user's own source-target pairs: two aligned files, tab-separated lines, or JSON lines."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, LinePairs, Parsed, Selection
from transformer_jax.data.files.json_lines import read_objects
from transformer_jax.data.files.lines import TextLines, configured_paths, open_files
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

_SIDES = ("source", "target")


def open_parallel_text(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of `parallel_text`, one corpus per pair of aligned files.

    Raises:
      UserError: the fields do not list equally many files, or one cannot be used.
    """
    fields = [f"{split}_source", f"{split}_target"]
    sources, targets = (configured_paths(config, field) for field in fields)
    if len(sources) != len(targets):
        raise UserError(
            f"data.{fields[0]} names {len(sources)} files, data.{fields[1]} {len(targets)}; "
            "file i of one must be aligned with file i of the other"
        )
    return [open_aligned(pair, split) for pair in zip(sources, targets, strict=True)]


def open_pairs(config: DataConfig, split: str, read: Callable[[str], Corpus]) -> Sequence[Corpus]:
    """Opens a split of pairs in single files, one corpus per file, with `read`.

    Raises:
      UserError: no file is configured, or one cannot be used.
    """
    return open_files(config, split, lambda path: drop_blank_if_training(read(path), split, path))


def open_aligned(paths: Sequence[str], split: str) -> Corpus:
    """Opens two aligned files, source and target; training drops blank lines."""
    return drop_blank_if_training(read_aligned(*paths), split, " and ".join(paths))


def read_aligned(source_path: str, target_path: str, *, once: bool = False) -> Corpus:
    """Pairs line i of one file with line i of the other.

    Args:
      source_path, target_path: text files, plain, .gz or .zst.
      once: allow pipes, as `TextLines`.

    Raises:
      UserError: a file cannot be read, or the numbers of lines differ.
    """
    sources, targets = TextLines(source_path, once=once), TextLines(target_path, once=once)
    if len(sources) != len(targets):
        raise UserError(
            f"{source_path} has {len(sources)} lines but {target_path} has {len(targets)}: "
            "line i of one must be the translation of line i of the other"
        )
    return LinePairs(sources, targets)


def read_tsv(path: str) -> Corpus:
    """Reads a file of lines SOURCE<tab>TARGET.

    Raises:
      UserError: it cannot be read, or a line does not have two columns; the first one is named.
    """
    lines = TextLines(path)
    for i in range(len(lines)):
        if (columns := lines.line_bytes(i).count(b"\t") + 1) != len(_SIDES):
            raise UserError(
                f"{path}, line {i + 1}: {columns} columns; write source<tab>target, two of them"
            )
    return Parsed(lines, _parse_tsv)


def read_json_lines(path: str) -> Corpus:
    """Reads a file of objects {"source": text, "target": text}; other keys are ignored.

    Raises:
      UserError: it cannot be read, or has an invalid line; the first one is named.
    """
    return read_objects(path, "all", _pair_example)


def drop_blank_if_training(pairs: Corpus, split: str, name: str) -> Corpus:
    """Drops blank pairs from the training split; evaluation keeps every line."""
    return drop_blank(pairs, name) if split == "train" else pairs


def drop_blank(pairs: Corpus, name: str) -> Corpus:
    """Drops pairs with a blank side, and logs their number; `name` describes the files.

    Raises:
      UserError: no pair is left.
    """
    kept = np.flatnonzero(_text_mask(pairs))
    if not len(kept):
        raise UserError(f"no line has text on both sides in {name}")
    if len(kept) == len(pairs):
        return pairs
    logger.warning(
        "left out %d of %d pairs of %s: no text on one side or on both",
        *(len(pairs) - len(kept), len(pairs), name),
    )
    return Selection(pairs, kept)


def _parse_tsv(line: str) -> Example:
    return dict(zip(_SIDES, line.split("\t"), strict=True))


def _pair_example(found: Any) -> Example:
    is_pair = isinstance(found, Mapping) and all(isinstance(found.get(s), str) for s in _SIDES)
    if not is_pair:
        raise ValueError('write {"source": text, "target": text}')
    return {side: found[side] for side in _SIDES}


def _text_mask(pairs: Corpus) -> np.ndarray:
    """Mask of the pairs that have text on both sides, bool [N]."""
    match pairs:
        case LinePairs(TextLines() as sources, TextLines() as targets):
            return ~(sources.blank_mask() | targets.blank_mask())
    both = (bool(pair["source"].strip() and pair["target"].strip()) for pair in pairs)
    return np.fromiter(both, bool, len(pairs))
