# SPDX-License-Identifier: Apache-2.0
"""Public sets of pairs, of text and of labeled text.

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

GLUE (Wang et al. 2019), in the tab-separated files of its download script. SST-2 (Socher et al.
2013): is a sentence of a film review positive? CoLA (Warstadt et al. 2019): is a sentence
acceptable English? MRPC (Dolan and Brockett 2005): do two sentences mean the same? RTE (Dagan et
al. 2006 and later): does the second follow from the first? Labels are as in the files. The data may
be used for research.

GUM, the Georgetown University Multilayer corpus (Zeldes 2017): trees of English texts in many
genres, tags of the extended set of the Penn Treebank. Annotations CC BY 4.0; the texts have
licenses of their own, some of them non-commercial.
"""

import hashlib
import itertools
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed, Selection
from transformer_jax.data.files.json_lines import read_conversations
from transformer_jax.data.files.lines import TextLines
from transformer_jax.data.files.pairs import drop_blank, open_aligned
from transformer_jax.data.files.rows import Rows, open_columns, select_rows
from transformer_jax.data.files.table import read_table
from transformer_jax.data.files.text import WholeFiles
from transformer_jax.data.files.trees import read_parses, read_tagged_trees
from transformer_jax.data.sets.download import PublicSet, RemoteFile
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

_GITHUB = "https://raw.githubusercontent.com/"


def _pinned(url: str, table: str, name: str = "{}") -> dict[str, RemoteFile]:
    """Files of a set by name, from lines PATH SIZE SHA256.

    Args:
      url: of a file on GitHub, with "{}" for its path.
      name: of a file, with "{}" for the last part of its path.
    """
    files = {}
    for path, size, sha256 in itertools.batched(table.split(), 3):
        remote = RemoteFile(_GITHUB + url.format(path), int(size), sha256)
        files[name.format(path.rpartition("/")[2])] = remote
    return files


_MULTI30K = "multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/{}.gz"
_FILE_STEMS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}

_MULTI30K_PINS = """
    train.en 568929 d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f
    train.de 637044 726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6
    train.fr 604242 622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c
    val.en 21650 14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28
    val.de 24681 f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a
    val.fr 23001 ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9
    test_2016_flickr.en 21077 611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9
    test_2016_flickr.de 22890 9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8
    test_2016_flickr.fr 22310 6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90
"""

MULTI30K = PublicSet("multi30k", _pinned(_MULTI30K, _MULTI30K_PINS))


def open_multi30k(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of a set, such as "multi30k_en_de", as one corpus."""
    _, *languages = config.name.split("_")
    stems = [f"{_FILE_STEMS[split]}.{language}" for language in languages]
    return [open_aligned([MULTI30K.path(stem, config.dir) for stem in stems], split)]


EXPORT = "deu.txt"
TATOEBA = PublicSet(
    name="tatoeba_de_en",
    source="manythings.org/anki has it as deu-eng.zip; extract deu.txt",
)

_COLUMNS = {"en": 0, "de": 1}
_LARGEST_HELD_OUT = 20  # pairs of a group; larger groups are training data
_PERCENT = {"test": range(0, 2), "valid": range(2, 4), "train": range(4, 100)}


def open_tatoeba(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of a set, such as "tatoeba_de_en", as one corpus."""
    _, *languages = config.name.split("_")
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
    import scipy.sparse.csgraph

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
    group_of = groups[starts]
    sizes = np.bincount(group_of)
    names: dict[int, str] = {}  # the first side of each group
    for group, first in zip(group_of.tolist(), firsts, strict=True):
        names[group] = min(first, names.get(group, first))
    return [
        _split_of(names[group]) if sizes[group] <= _LARGEST_HELD_OUT else "train"
        for group in group_of.tolist()
    ]


def _normalize(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text.lower()).strip()


def _split_of(name: str) -> str:
    percent = int(hashlib.md5(name.encode(), usedforsecurity=False).hexdigest(), 16) % 100
    return next(split for split, percents in _PERCENT.items() if percent in percents)


_SCAN = "brendenlake/SCAN/c4b756cbc010d75c912f16c42c8f15dc6b7e6c8f/{}"
_SCAN_PERIOD = 20  # one of 20 training examples is for validation

_SCAN_PINS = """
    simple_split/tasks_train_simple.txt 3267938 941bb8a088c5f53ceff12fde902dc008933cf0c4203cc672c47b5f79d73262dd
    simple_split/tasks_test_simple.txt 812450 1fe1c8f5a19d0dc40e41bab94278f45f66f3dc415a978bd29855a23440610fc6
    length_split/tasks_train_length.txt 2723418 b034212dc7cf87ce62f3a067dd6ad49c4d5cd18d51d615d13825516bcb1ebbc2
    length_split/tasks_test_length.txt 1356970 0760752ed34a75116ae11dcc1ee17526b7500060da1366540730fa24894d7db3
    add_prim_split/tasks_train_addprim_jump.txt 2579619 e3c78485692e028eed4205e1b8b3fd0e785ef2c12d45b5b89204dadf5b239e23
    add_prim_split/tasks_test_addprim_jump.txt 1531555 8147ae2651422c701162e174d9d66158daa57858a26b30317ac61797118ac7a5
"""  # noqa: E501
SCAN = PublicSet("scan", _pinned(_SCAN, _SCAN_PINS))

_SCAN_LINE = re.compile(r"IN: (.*?) OUT: (.*)")


def open_scan(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of a set, such as "scan_simple", as one corpus.

    Raises:
      UserError: its file is missing, or a line is not of the form "IN: ... OUT: ...".
    """
    part = "test" if split == "test" else "train"
    file = f"tasks_{part}_{config.name.removeprefix('scan_')}.txt"
    lines = TextLines(SCAN.path(file, config.dir))
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


_CHAR_RNN = "karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/{}"
_CHAR_RNN_PIN = """
    input.txt 1115394 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
"""
TINY_SHAKESPEARE = PublicSet("tiny_shakespeare", _pinned(_CHAR_RNN, _CHAR_RNN_PIN))
"""About 40,000 lines of Shakespeare's plays (Karpathy 2015, char-rnn). Public domain."""

_WIKITEXT2 = (
    "pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8/word_language_model/data/wikitext-2/"
    "{}.txt"
)
_WIKITEXT2_PINS = """
    train 10797148 9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f
    valid 1121681 f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8
    test 1256449 d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0
"""
WIKITEXT2 = PublicSet("wikitext2", _pinned(_WIKITEXT2, _WIKITEXT2_PINS, "wiki.{}.tokens"))
"""Wikipedia articles, tokenized, rare words as <unk>: 2,051,910, 213,886 and 241,211 words.

Merity et al. 2016, "Pointer Sentinel Mixture Models". CC BY-SA 3.0. Line ends (which the literature
counts as tokens) and blank lines are part of the text.
"""

GUTENBERG = PublicSet(
    name="gutenberg",
    source="any books of gutenberg.org as NAME.txt; NLTK's selection, nltk.download('gutenberg'), "
    "contains the held-out ones",
)
"""Whole books, NLTK's selection or any other. Public domain in the USA."""

HELD_OUT_BOOKS = {"valid": "chesterton-thursday", "test": "austen-persuasion"}
"""Books for evaluation; NLTK's selection has other books by both authors."""


def open_tiny_shakespeare(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split as one document: the first 90% of the characters for training, the rest for
    "valid" and "test".

    Raises:
      UserError: the file is missing or cannot be used.
    """
    text = WholeFiles((TINY_SHAKESPEARE.path("input.txt", config.dir),))[0]["text"]
    middle = int(0.9 * len(text))
    return [[{"text": text[:middle] if split == "train" else text[middle:]}]]


def open_wikitext2(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split as one document, the split's file."""
    return [WholeFiles((WIKITEXT2.path(f"wiki.{split}.tokens", config.dir),))]


def open_gutenberg(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split with one document per book; training excludes `HELD_OUT_BOOKS`."""
    held_out = {
        name: GUTENBERG.path(f"{book}.txt", config.dir) for name, book in HELD_OUT_BOOKS.items()
    }
    if split != "train":
        return [WholeFiles((held_out[split],))]
    folder = GUTENBERG.local_folder(config.dir)
    names = {name.removesuffix(".gz") for name in os.listdir(folder)}
    books = {GUTENBERG.path(name, config.dir) for name in names if name.endswith(".txt")}
    train = sorted(books - set(held_out.values()))
    if not train:
        raise UserError(f"{folder} has no book to train on: add others as NAME.txt")
    return [WholeFiles(tuple(train))]


ALPACA = PublicSet(
    name="alpaca", source="github.com/tatsu-lab/stanford_alpaca has alpaca_data.json"
)
"""52,002 instructions with answers generated by a language model (Taori et al. 2023, "Stanford
Alpaca: An Instruction-following LLaMA model"). CC BY-NC 4.0."""

_ALPACA_PERIOD = 50


def open_alpaca(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split as one corpus. Of every 50 examples one is for validation, one for testing."""
    lines = ALPACA.find("alpaca_data.jsonl", config.dir)
    path = lines or ALPACA.path("alpaca_data.json", config.dir)
    conversations = read_conversations(path, "train")
    index = np.arange(len(conversations)) % _ALPACA_PERIOD
    masks = {"valid": index == 0, "test": index == 1, "train": index > 1}
    return [Selection(conversations, np.flatnonzero(masks[split]))]


GLUE = PublicSet(
    name="glue",
    source="or of one task; GLUE's script download_glue_data.py downloads them",
)


@dataclass(frozen=True)
class GlueTask:
    """Files of a task.

    Attributes:
      folder: folder of the task in the folder of GLUE.
      files: split -> file name, for the splits with public labels.
      columns: key of an example -> name of its column.
      names: of the columns, where the files do not have them.
    """

    folder: str
    files: Mapping[str, str]
    columns: Mapping[str, str]
    names: Sequence[str] = ()


_TRAIN_AND_VALID = {"train": "train.tsv", "valid": "dev.tsv"}

GLUE_TASKS = {
    "sst2": GlueTask("SST-2", _TRAIN_AND_VALID, {"text": "sentence", "label": "label"}),
    "cola": GlueTask(
        "CoLA",
        _TRAIN_AND_VALID,
        {"text": "sentence", "label": "label"},
        names=("source", "label", "star", "sentence"),
    ),
    "mrpc": GlueTask(
        "MRPC",
        _TRAIN_AND_VALID | {"test": "msr_paraphrase_test.txt"},
        {"text": "#1 String", "pair": "#2 String", "label": "Quality"},
    ),
    "rte": GlueTask(
        "RTE", _TRAIN_AND_VALID, {"text": "sentence1", "pair": "sentence2", "label": "label"}
    ),
}
"""Name of the data set -> its files."""


def open_glue(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of a task as one corpus.

    `config.dir` is the folder of the task or the folder of GLUE.
    """
    task = GLUE_TASKS[config.name]
    file = task.files[split]
    path = GLUE.find(file, config.dir) or GLUE.path(f"{task.folder}/{file}", config.dir)
    rows = open_columns(path, task.names, delimiter="\t")
    return [read_table(rows, task.columns, split)]


GUM = PublicSet(
    name="gum",
    source="github.com/amir-zeldes/gum has the trees of each document in const/, and the "
    "documents of dev and test in splits.md; write one tree per line",
)

_GUM_FILES = {"train": "train.trees", "valid": "dev.trees", "test": "test.trees"}


def open_pos(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of `pos_gum` as one corpus: words and their part-of-speech tags."""
    return [read_tagged_trees(GUM.path(_GUM_FILES[split], config.dir))]


def open_const(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of `gum_const` as one corpus: sentences and their trees."""
    return [read_parses(GUM.path(_GUM_FILES[split], config.dir))]
