# SPDX-License-Identifier: Apache-2.0
"""Tasks of GLUE."""

import pytest

from transformer_jax.data.config import DataConfig
from transformer_jax.data.sets.glue import TASKS
from transformer_jax.data.sources import SOURCES, open_split
from transformer_jax.errors import UserError

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
        folder = tmp_path / TASKS[name].folder
        folder.mkdir()
        for file in ("train.tsv", "dev.tsv"):
            (folder / file).write_text(header + line)
    (tmp_path / "MRPC" / "msr_paraphrase_test.txt").write_text(
        "\ufeff" + "".join(FILES["mrpc"][:2])
    )
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_the_folder_is_that_of_the_task_or_of_glue(glue, name):
    for folder in (glue, glue / TASKS[name].folder):
        for split in SOURCES[name].splits:
            examples = open_split(DataConfig(name=name, dir=str(folder)), split)
            assert list(examples) == [FILES[name][2]]


def test_splits_with_hidden_labels_do_not_exist(glue):
    assert SOURCES["mrpc"].splits == ("train", "valid", "test")
    for name in ("sst2", "cola", "rte"):
        with pytest.raises(UserError, match=f"{name} has no split 'test': .* train, valid"):
            open_split(DataConfig(name=name, dir=str(glue)), "test")


def test_a_file_of_another_task_is_an_error(glue):
    with pytest.raises(UserError, match=r"CoLA/train.tsv: the header is 'gj04.*sentence<tab>label"):
        open_split(DataConfig(name="sst2", dir=str(glue / "CoLA")), "train")
    with pytest.raises(UserError, match="line 1: 2 columns; expected source<tab>label<tab>star"):
        open_split(DataConfig(name="cola", dir=str(glue / "SST-2")), "valid")


def test_the_error_for_missing_files_names_their_source(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_DATA", str(tmp_path))
    with pytest.raises(UserError, match="glue has neither RTE/dev.tsv .*download_glue_data.py"):
        open_split(DataConfig(name="rte"), "valid")
