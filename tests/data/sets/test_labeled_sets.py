# SPDX-License-Identifier: Apache-2.0
"""Tasks of GLUE, and GUM: words with tags, and trees."""

import pytest

from tests.data.writing import write
from tests.refusals import assert_refused
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sets.labeled_sets import GLUE_TASKS
from transformer_jax.data.sources import SOURCES, open_split

FILES = {
    "sst2": ("sentence\tlabel\n", 'a "fine film \t1\n', {"text": 'a "fine film ', "label": "1"}),
    "cola": ("", "gj04\t0\t*\tThey it.\n", {"text": "They it.", "label": "0"}),
    "mrpc": (
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n",
        "1\t702\t703\tHe said.\tShe said.\n",
        {"text": "He said.", "pair": "She said.", "label": "1"},
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n",
        "0\tNo one came.\tOne came.\tnot_entailment\n",
        {"text": "No one came.", "pair": "One came.", "label": "not_entailment"},
    ),
}


@pytest.fixture
def glue(tmp_path):
    """Folder of GLUE with one line in each file."""
    for name, (header, line, _) in FILES.items():
        folder = tmp_path / GLUE_TASKS[name].folder
        folder.mkdir()
        for file in ("train.tsv", "dev.tsv"):
            (folder / file).write_text(header + line)
    (tmp_path / "MRPC" / "msr_paraphrase_test.txt").write_text(
        "\ufeff" + "".join(FILES["mrpc"][:2])
    )
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_the_folder_is_that_of_the_task_or_of_glue(glue, name):
    for folder in (glue, glue / GLUE_TASKS[name].folder):
        for split in SOURCES[name].splits:
            examples = open_split(DataConfig(name=name, dir=str(folder)), split)
            assert list(examples) == [FILES[name][2]]


def test_each_split_has_its_file(tmp_path):
    for split, stem in (("train", "train"), ("valid", "dev"), ("test", "test")):
        tree = f"(TOP (NP (JJ {split}) (NN word)))\n"
        write(tmp_path / f"{stem}.trees.gz", tree)
        examples = open_split(DataConfig(name="pos_gum", dir=str(tmp_path)), split)
        assert list(examples) == [{"text": f"{split} word", "tags": "JJ NN"}]


def test_trees_are_read(tmp_path):
    (tmp_path / "dev.trees").write_text("(TOP (UH Oh))\n")
    valid = open_split(DataConfig(name="gum_const", dir=str(tmp_path)), "valid")
    assert list(valid) == [{"source": "Oh", "target": "(TOP (UH Oh))"}]


def test_what_cannot_be_opened_is_refused(glue, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_DATA", str(tmp_path / "empty"))

    def open_set(name, split, folder=glue):
        config = DataConfig(name=name, dir=folder and str(folder))
        return lambda: open_split(config, split)

    assert SOURCES["mrpc"].splits == ("train", "valid", "test")
    hidden = {
        f"{name} has no split 'test': choose one of train, valid": open_set(name, "test")
        for name in ("sst2", "cola", "rte")
    }
    assert_refused(
        hidden
        | {
            "CoLA/train.tsv has no column 'sentence'": open_set("sst2", "train", glue / "CoLA"),
            "line 1: 2 columns; expected 4: 'source', 'label', 'star'": open_set(
                "cola", "valid", glue / "SST-2"
            ),
            "script download_glue_data.py": open_set("rte", "valid", None),
            "neither dev.trees nor dev.trees.gz": open_set("pos_gum", "valid"),
        }
    )
