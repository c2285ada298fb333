"""Tatoeba, German and English: short everyday sentences (tatoeba.org, CC BY 2.0 FR).

Read from aligned files train.en, train.de, valid.en, ... where the folder has them, else from
`deu.txt`, the tab-separated export that manythings.org/anki offers and many tutorials use: English,
German and, in newer ones, an attribution. That file has no splits. Here two pairs that share a
sentence, in any chain, fall into the same part, so that nothing scored was seen in training.
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
from transformer_jax.data.files.pairs import for_split, open_aligned
from transformer_jax.data.files.text import TextLines
from transformer_jax.data.sets.download import PublicSet
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

EXPORT = "deu.txt"
TATOEBA = PublicSet(
    name="tatoeba_de_en",
    files={},
    source="manythings.org/anki has it as deu-eng.zip; its deu.txt will do",
)

_COLUMNS = {"en": 0, "de": 1}
_LARGEST_HELD_OUT = 20  # pairs of one group; larger groups go to training
_PERCENT = {"test": range(0, 2), "valid": range(2, 4), "train": range(4, 100)}


def open_split(
    config: DataConfig, split: str, source_language: str, target_language: str
) -> Sequence[Corpus]:
    """The one corpus of a split, in either direction.

    Raises:
      UserError: the folder has neither the aligned files nor the export, or they cannot be used.
    """
    languages = (source_language, target_language)
    export = TATOEBA.find(EXPORT, config.dir)
    if export is None:
        paths = [TATOEBA.path(f"{split}.{language}", config.dir) for language in languages]
        return [open_aligned(paths, split)]
    return [for_split(_part_of_export(export, split, languages), split, export)]


def _part_of_export(path: str, split: str, languages: Sequence[str]) -> Corpus:
    lines = TextLines(path)
    for i in range(len(lines)):
        if lines.line_bytes(i).count(b"\t") not in (1, 2):
            raise UserError(f"{path}, line {i + 1}: not English<tab>German, as {EXPORT} has it")
    parts = assign_parts(line.split("\t")[:2] for line in lines)
    logger.info("%s: %s", path, dict(Counter(parts)))
    source, target = (_COLUMNS[language] for language in languages)
    pairs = Parsed(lines, partial(_parse, source=source, target=target))
    return Selection(pairs, np.flatnonzero(np.array(parts) == split))


def _parse(line: str, source: int, target: int) -> Example:
    columns = line.split("\t")
    return {"source": columns[source], "target": columns[target]}


def assign_parts(pairs: Iterable[Sequence[str]]) -> list[str]:
    """ "train", "valid" or "test" for each pair; the same for pairs that share a side.

    Sides are compared without case and punctuation. A group's part depends on the MD5 of its
    first side: 2% of the groups are "valid" and 2% "test"; large groups are "train".
    """
    roots: dict[str, str] = {}

    def root(side: str) -> str:
        while (parent := roots.setdefault(side, side)) != side:
            roots[side] = roots[parent]  # path halving
            side = parent
        return side

    firsts = []
    for pair in pairs:
        first, second = (f"{i}{_bare(text)}" for i, text in enumerate(pair))
        roots[root(second)] = root(first)
        firsts.append(first)
    members = defaultdict(list)
    for place, first in enumerate(firsts):
        members[root(first)].append(place)
    parts = ["train"] * len(firsts)
    for places in members.values():
        if len(places) <= _LARGEST_HELD_OUT:
            part = _part_of(min(firsts[place] for place in places))
            for place in places:
                parts[place] = part
    return parts


def _bare(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text.lower()).strip()


def _part_of(name: str) -> str:
    percent = int(hashlib.md5(name.encode(), usedforsecurity=False).hexdigest(), 16) % 100
    return next(part for part, percents in _PERCENT.items() if percent in percents)
