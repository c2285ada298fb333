"""The user's own files of source-target pairs: two aligned files, tab-separated or JSON lines."""

import json
import logging
from collections.abc import Callable, Sequence

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, LinePairs, Parsed, Selection
from transformer_jax.data.files.text import TextLines, configured_paths, open_files
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

_SIDES = ("source", "target")


def open_parallel_text(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The corpora of a split of `parallel_text`: one for each pair of aligned files.

    Raises:
      UserError: the fields do not name equally many files, or one cannot be used.
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
    """The corpora of a split whose pairs stand whole in one file: one for each file.

    Raises:
      UserError: no file is named, or one cannot be used.
    """
    return open_files(config, split, lambda path: for_split(read(path), split, path))


def open_aligned(paths: Sequence[str], split: str) -> Corpus:
    """The pairs of two aligned files, source and target, as the split needs them."""
    return for_split(read_aligned(*paths), split, " and ".join(paths))


def for_split(pairs: Corpus, split: str, where: str) -> Corpus:
    """Only training may lose blank lines: what is scored keeps every line and its order."""
    return drop_blank(pairs, where) if split == "train" else pairs


def read_aligned(source_path: str, target_path: str, *, once: bool = False) -> Corpus:
    """Line i of one file beside line i of the other; plain or gzip (by the ending .gz); with
    `once`, pipes too, as for `TextLines`.

    Raises:
      UserError: a file cannot be read, or the files differ in length.
    """
    sources, targets = TextLines(source_path, once=once), TextLines(target_path, once=once)
    if len(sources) != len(targets):
        raise UserError(
            f"{source_path} has {len(sources)} lines but {target_path} has {len(targets)}: "
            "line i of one must be the translation of line i of the other"
        )
    return LinePairs(sources, targets)


def read_tsv(path: str) -> Corpus:
    """A file of lines SOURCE<tab>TARGET.

    Raises:
      UserError: it cannot be read, or a line has not two columns (the first such line is named).
    """
    lines = TextLines(path)
    for i in range(len(lines)):
        if (columns := lines.line_bytes(i).count(b"\t") + 1) != len(_SIDES):
            raise UserError(
                f"{path}, line {i + 1}: {columns} columns; write source<tab>target, two of them"
            )
    return Parsed(lines, _split_tsv)


def read_json_lines(path: str) -> Corpus:
    """A file of one object {"source": text, "target": text} a line; other keys are not looked at.

    Raises:
      UserError: it cannot be read, or a line is no such object (the first one is named).
    """
    lines = TextLines(path)
    for i, line in enumerate(lines):
        if not _is_pair(line):
            raise UserError(f'{path}, line {i + 1}: write {{"source": text, "target": text}}')
    return Parsed(lines, _read_object)


def drop_blank(pairs: Corpus, where: str) -> Corpus:
    """Leaves out pairs that have no text on one side or on both, with a warning that counts them.

    That fits training; what is scored keeps every line.

    Raises:
      UserError: no pair is left.
    """
    kept = np.flatnonzero(_have_text(pairs))
    if not len(kept):
        raise UserError(f"no line has text on both sides in {where}")
    if len(kept) == len(pairs):
        return pairs
    logger.warning(
        "left out %d of %d pairs of %s: no text on one side or on both",
        *(len(pairs) - len(kept), len(pairs), where),
    )
    return Selection(pairs, kept)


def _split_tsv(line: str) -> Example:
    return dict(zip(_SIDES, line.split("\t"), strict=True))


def _is_pair(line: str) -> bool:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(given, dict) and all(isinstance(given.get(side), str) for side in _SIDES)


def _read_object(line: str) -> Example:
    given = json.loads(line)
    return {side: given[side] for side in _SIDES}


def _have_text(pairs: Corpus) -> np.ndarray:
    """Which pairs have text on both sides, bool [N]."""
    match pairs:
        case LinePairs(TextLines() as sources, TextLines() as targets):
            return ~(sources.blank() | targets.blank())
    both = (bool(pair["source"].strip() and pair["target"].strip()) for pair in pairs)
    return np.fromiter(both, bool, len(pairs))
