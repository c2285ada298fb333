# SPDX-License-Identifier: Apache-2.0
"""Public sets of pairs: Multi30k, Tatoeba and SCAN.

Multi30k, task 1 (Elliott et al. 2016 and 2017): image captions and their human translations, raw
text: 29,000 training, 1,014 validation and 1,000 test lines per language, aligned. License
according to the WMT multimodal task: CC BY-NC-SA 4.0.

Tatoeba, German and English: short everyday sentences (tatoeba.org, CC BY 2.0 FR), read from
`deu.txt`, the tab-separated export of manythings.org/anki that many tutorials use (English, German
and, in newer versions, an attribution). Without it, read from aligned files train.en, train.de,
valid.en, ... The export has no splits. Here pairs that are connected by shared sentences are in the
same split, so no sentence of the test is in the training data.

SCAN (Lake and Baroni 2018, "Generalization without Systematicity"): navigation commands and their
sequences of actions. Three divisions into training and test: "simple" is random, "length" has
longer outputs in the test, and in "addprim_jump" training contains "jump" only as a command of its
own. There is no validation split: every 20th training example is held out for it.
"""

import hashlib
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import scipy.sparse.csgraph

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed, Selection
from transformer_jax.data.files.lines import TextLines
from transformer_jax.data.files.pairs import drop_blank, open_aligned
from transformer_jax.data.files.rows import Rows, select_rows
from transformer_jax.data.sets.download import PublicSet, RemoteFile
from transformer_jax.errors import UserError

_MULTI30K_URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
)

FILE_STEMS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}

_MULTI30K_PINS = {  # split -> language -> size in bytes and SHA-256 of the .gz file
    "train": {
        "en": (568929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
        "de": (637044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
        "fr": (604242, "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c"),
    },
    "valid": {
        "en": (21650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
        "de": (24681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
        "fr": (23001, "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9"),
    },
    "test": {
        "en": (21077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
        "de": (22890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
        "fr": (22310, "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90"),
    },
}

MULTI30K = PublicSet(
    name="multi30k",
    files={
        f"{FILE_STEMS[split]}.{language}": RemoteFile(
            f"{_MULTI30K_URL}{FILE_STEMS[split]}.{language}.gz", *pin
        )
        for split, languages in _MULTI30K_PINS.items()
        for language, pin in languages.items()
    },
)


def open_multi30k(
    config: DataConfig, split: str, source_language: str, target_language: str
) -> Sequence[Corpus]:
    """Opens a split as one corpus, in either direction."""
    stems = [f"{FILE_STEMS[split]}.{language}" for language in (source_language, target_language)]
    return [open_aligned([MULTI30K.path(stem, config.dir) for stem in stems], split)]


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


def open_tatoeba(
    config: DataConfig, split: str, source_language: str, target_language: str
) -> Sequence[Corpus]:
    """Opens a split as one corpus, in either direction."""
    languages = (source_language, target_language)
    export = TATOEBA.find(EXPORT, config.dir)
    if export is None:
        paths = [TATOEBA.path(f"{split}.{language}", config.dir) for language in languages]
        return [open_aligned(paths, split)]
    return [drop_blank(_read_export(export, split, languages), split, export)]


def _read_export(path: str, split: str, languages: Sequence[str]) -> Corpus:
    lines = TextLines(path)
    for i in range(len(lines)):
        if lines.line_bytes(i).count(b"\t") not in (1, 2):
            raise UserError(f"{path}, line {i + 1}: not English<tab>German, the form of {EXPORT}")
    splits = assign_splits(line.split("\t")[:2] for line in lines)
    logger.info("%s: %s", path, dict(Counter(splits)))
    source, target = (_COLUMNS[language] for language in languages)
    pairs = Parsed(lines, partial(_parse_columns, source=source, target=target))
    return Selection(pairs, np.flatnonzero(np.array(splits) == split))


def _parse_columns(line: str, source: int, target: int) -> Example:
    columns = line.split("\t")
    return {"source": columns[source], "target": columns[target]}


def assign_splits(pairs: Iterable[Sequence[str]]) -> list[str]:
    """Assigns "train", "valid" or "test" to each pair; the same to pairs that share a side.

    Sides are compared without case and punctuation. The split of a group of connected pairs depends
    on the MD5 of its first side: 2% of the groups are "valid" and 2% "test"; large groups are
    "train".
    """
    numbers: dict[str, int] = {}  # of each side
    firsts = []
    edges = []
    for pair in pairs:
        sides = [f"{i}{_normalize(text)}" for i, text in enumerate(pair)]
        firsts.append(sides[0])
        edges.append([numbers.setdefault(side, len(numbers)) for side in sides])
    starts, ends = np.array(edges).T
    shape = (len(numbers), len(numbers))
    graph = scipy.sparse.coo_array((np.ones(len(edges)), (starts, ends)), shape)
    _, groups = scipy.sparse.csgraph.connected_components(graph, directed=False)
    members = defaultdict(list)
    for index, start in enumerate(starts):
        members[groups[start]].append(index)
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


_SCAN_URL = (
    "https://raw.githubusercontent.com/brendenlake/SCAN/c4b756cbc010d75c912f16c42c8f15dc6b7e6c8f/"
)
_SCAN_PERIOD = 20  # one of 20 training examples is for validation

SCAN_SETS = {
    "scan_simple": ("simple_split", "simple"),
    "scan_length": ("length_split", "length"),
    "scan_addprim_jump": ("add_prim_split", "addprim_jump"),
}
"""Name -> folder and end of the file name in the public repository."""

_SCAN_PINS = {  # size in bytes and SHA-256
    "test_addprim_jump": (
        1531555,
        "8147ae2651422c701162e174d9d66158daa57858a26b30317ac61797118ac7a5",
    ),
    "test_length": (1356970, "0760752ed34a75116ae11dcc1ee17526b7500060da1366540730fa24894d7db3"),
    "test_simple": (812450, "1fe1c8f5a19d0dc40e41bab94278f45f66f3dc415a978bd29855a23440610fc6"),
    "train_addprim_jump": (
        2579619,
        "e3c78485692e028eed4205e1b8b3fd0e785ef2c12d45b5b89204dadf5b239e23",
    ),
    "train_length": (2723418, "b034212dc7cf87ce62f3a067dd6ad49c4d5cd18d51d615d13825516bcb1ebbc2"),
    "train_simple": (3267938, "941bb8a088c5f53ceff12fde902dc008933cf0c4203cc672c47b5f79d73262dd"),
}

SCAN = PublicSet(
    name="scan",
    files={
        f"tasks_{part}_{end}.txt": RemoteFile(
            f"{_SCAN_URL}{folder}/tasks_{part}_{end}.txt", *_SCAN_PINS[f"{part}_{end}"]
        )
        for folder, end in SCAN_SETS.values()
        for part in ("train", "test")
    },
)

_SCAN_LINE = re.compile(r"IN: (.*?) OUT: (.*)")


def open_scan(config: DataConfig, split: str, name: str) -> Sequence[Corpus]:
    """Opens a split of a set (a key of `SCAN_SETS`) as one corpus.

    Raises:
      UserError: its file is missing, or a line is not of the form "IN: ... OUT: ...".
    """
    part = "test" if split == "test" else "train"
    lines = TextLines(SCAN.path(f"tasks_{part}_{SCAN_SETS[name][1]}.txt", config.dir))
    examples = select_rows(Rows(lines, lines.path, "line"), _parse_scan, "all")
    if split == "test":
        return [examples]
    held_out = np.arange(len(lines)) % _SCAN_PERIOD == 0
    return [Selection(examples, np.flatnonzero(held_out if split == "valid" else ~held_out))]


def _parse_scan(line: str) -> Example:
    """Example of a line; ValueError if it has another form."""
    match = _SCAN_LINE.fullmatch(line.strip())
    if not match:
        raise ValueError('not "IN: command OUT: actions"')
    return {"source": match[1], "target": match[2]}
