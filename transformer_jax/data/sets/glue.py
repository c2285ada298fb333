"""Four tasks of GLUE, in the tab-separated files that its download script leaves.

Wang et al. 2019, "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding". SST-2 (Socher et al. 2013): is a sentence of a film review positive? CoLA (Warstadt
et al. 2019): is a sentence acceptable English? MRPC (Dolan and Brockett 2005): do two sentences
mean the same? RTE (Dagan et al. 2006 and later): does the second follow from the first? Labels are
those of the files. All of it is for research.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus
from transformer_jax.data.files.tsv import TsvColumns, read_labeled
from transformer_jax.data.sets.download import PublicSet

GLUE = PublicSet(
    name="glue",
    files={},
    source="or of one task; GLUE's script download_glue_data.py brings them",
)


@dataclass(frozen=True)
class GlueTask:
    """A task's files.

    Attributes:
      folder: their folder below that of GLUE.
      files: split -> file name. Splits whose labels are not public are left out.
      layout: what the columns hold.
    """

    folder: str
    files: Mapping[str, str]
    layout: TsvColumns


_TRAIN_AND_VALID = {"train": "train.tsv", "valid": "dev.tsv"}

TASKS = {
    "sst2": GlueTask(
        "SST-2",
        _TRAIN_AND_VALID,
        TsvColumns(("sentence", "label"), {"text": "sentence", "label": "label"}),
    ),
    "cola": GlueTask(
        "CoLA",
        _TRAIN_AND_VALID,
        TsvColumns(
            ("source", "label", "star", "sentence"),
            {"text": "sentence", "label": "label"},
            has_header=False,
        ),
    ),
    "mrpc": GlueTask(
        "MRPC",
        _TRAIN_AND_VALID | {"test": "msr_paraphrase_test.txt"},
        TsvColumns(
            ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
            {"text": "#1 String", "pair": "#2 String", "label": "Quality"},
        ),
    ),
    "rte": GlueTask(
        "RTE",
        _TRAIN_AND_VALID,
        TsvColumns(
            ("index", "sentence1", "sentence2", "label"),
            {"text": "sentence1", "pair": "sentence2", "label": "label"},
        ),
    ),
}
"""Name of the set -> its files."""


def open_split(config: DataConfig, split: str, name: str) -> Sequence[Corpus]:
    """The one corpus of a split of `name`, one of `TASKS`.

    `config.dir` is the folder of the task's files, or that of GLUE above it.

    Raises:
      UserError: the file is missing or of another form.
    """
    task = TASKS[name]
    file = task.files[split]
    path = GLUE.find(file, config.dir) or GLUE.path(f"{task.folder}/{file}", config.dir)
    return [read_labeled(path, [task.layout])]
