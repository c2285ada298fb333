# SPDX-License-Identifier: Apache-2.0
"""Public sets with labels, tags and trees: four tasks of GLUE, and GUM.

GLUE (Wang et al. 2019), in the tab-separated files of its download script. SST-2 (Socher et al.
2013): is a sentence of a film review positive? CoLA (Warstadt et al. 2019): is a sentence
acceptable English? MRPC (Dolan and Brockett 2005): do two sentences mean the same? RTE (Dagan et
al. 2006 and later): does the second follow from the first? Labels are as in the files. The data may
be used for research.

GUM, the Georgetown University Multilayer corpus (Zeldes 2017): trees of English texts in many
genres, tags of the extended set of the Penn Treebank. Annotations CC BY 4.0; the texts have
licenses of their own, some of them non-commercial.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus
from transformer_jax.data.files.rows import open_columns
from transformer_jax.data.files.table import read_table
from transformer_jax.data.files.trees import read_parses, read_tagged_trees
from transformer_jax.data.sets.download import PublicSet

GLUE = PublicSet(
    name="glue",
    files={},
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


def open_glue(config: DataConfig, split: str, name: str) -> Sequence[Corpus]:
    """Opens a split of a task (a key of `GLUE_TASKS`) as one corpus.

    `config.dir` is the folder of the task or the folder of GLUE.
    """
    task = GLUE_TASKS[name]
    file = task.files[split]
    path = GLUE.find(file, config.dir) or GLUE.path(f"{task.folder}/{file}", config.dir)
    rows = open_columns(path, task.names, delimiter="\t")
    return [read_table(rows, task.columns, split)]


GUM = PublicSet(
    name="gum",
    files={},
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
