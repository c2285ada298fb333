# SPDX-License-Identifier: Apache-2.0
"""Tatoeba, German and English: short everyday sentences (tatoeba.org, CC BY 2.0 FR).

Read from `deu.txt`, the tab-separated export of manythings.org/anki that many tutorials use
(English, German and, in newer versions, an attribution). Without it, read from aligned files
train.en, train.de, valid.en, ... The export has no splits. Here pairs that are connected by shared
sentences are in the same split, so no sentence of the test is in the training data.
"""

import hashlib
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed, Selection
from transformer_jax.data.files.lines import TextLines
from transformer_jax.data.files.pairs import drop_blank_if_training, open_aligned
from transformer_jax.data.sets.download import PublicSet
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

EXPORT = "deu.txt"
TATOEBA = PublicSet(
    name="tatoeba_de_en",
    files={},
    source="manythings.org/anki has it as deu-eng.zip; extract deu.txt",
)

_COLUMNS = {"en": 0, "de": 1}
_LARGEST_HELD_OUT = 20  # pairs of a group; larger groups are training data
_PERCENT = {"test": range(0, 2), "valid": range(2, 4), "train": range(4, 100)}


def open_split(
    config: DataConfig, split: str, source_language: str, target_language: str
) -> Sequence[Corpus]:
    """Opens a split as one corpus, in either direction.

    Raises:
      UserError: the folder has neither the export nor the aligned files, or they cannot be used.
    """
    languages = (source_language, target_language)
    export = TATOEBA.find(EXPORT, config.dir)
    if export is None:
        paths = [TATOEBA.path(f"{split}.{language}", config.dir) for language in languages]
        return [open_aligned(paths, split)]
    return [drop_blank_if_training(_read_export(export, split, languages), split, export)]


def _read_export(path: str, split: str, languages: Sequence[str]) -> Corpus:
    lines = TextLines(path)
    for i in range(len(lines)):
        if lines.line_bytes(i).count(b"\t") not in (1, 2):
            raise UserError(f"{path}, line {i + 1}: not English<tab>German, the form of {EXPORT}")
    splits = assign_splits(line.split("\t")[:2] for line in lines)
    logger.info("%s: %s", path, dict(Counter(splits)))
    source, target = (_COLUMNS[language] for language in languages)
    pairs = Parsed(lines, partial(_parse, source=source, target=target))
    return Selection(pairs, np.flatnonzero(np.array(splits) == split))


def _parse(line: str, source: int, target: int) -> Example:
    columns = line.split("\t")
    return {"source": columns[source], "target": columns[target]}


def assign_splits(pairs: Iterable[Sequence[str]]) -> list[str]:
    """Assigns "train", "valid" or "test" to each pair; the same to pairs that share a side.

    Sides are compared without case and punctuation. The split of a group of connected pairs depends
    on the MD5 of its first side: 2% of the groups are "valid" and 2% "test"; large groups are
    "train".
    """
    roots: dict[str, str] = {}  # union-find: side -> a connected side, or itself

    def root(side: str) -> str:
        parent = roots.setdefault(side, side)
        while parent != side:
            roots[side] = roots[parent]  # path halving
            side = parent
            parent = roots[side]
        return side

    firsts = []
    for pair in pairs:
        first, second = (f"{i}{_normalize(text)}" for i, text in enumerate(pair))
        roots[root(second)] = root(first)
        firsts.append(first)
    members = defaultdict(list)
    for index, first in enumerate(firsts):
        members[root(first)].append(index)
    splits = ["train"] * len(firsts)
    for group in members.values():
        if len(group) <= _LARGEST_HELD_OUT:
            split = _split_of(min(firsts[index] for index in group))
            for index in group:
                splits[index] = split
    return splits


def _normalize(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text.lower()).strip()


def _split_of(name: str) -> str:
    percent = int(hashlib.md5(name.encode(), usedforsecurity=False).hexdigest(), 16) % 100
    return next(split for split, percents in _PERCENT.items() if percent in percents)
