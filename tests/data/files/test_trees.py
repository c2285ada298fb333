# SPDX-License-Identifier: Apache-2.0
"""Files of bracketed trees, and of tagged words."""

import pytest

from tests.data.writing import write
from transformer_jax.data.config import DataConfig
from transformer_jax.data.files.trees import read_parses, read_tagged_trees, read_tagged_words
from transformer_jax.data.sources import open_split

SPREAD = """
( (S
    (NP-SBJ (DT The) (NN end))
    (VP (-NONE- *)
      (VBZ comes)) (. .)))

( (UH Oh) )
"""
WHOLE = {
    "source": "The end * comes .",
    "target": "( (S (NP-SBJ (DT The) (NN end)) (VP (-NONE- *) (VBZ comes)) (. .)))",
}
CLEAN = {
    "source": "The end comes .",
    "target": "( (S (NP (DT The) (NN end)) (VP (VBZ comes)) (. .)))",
}
OH = {"source": "Oh", "target": "( (UH Oh))"}


def test_trees_may_be_spread_over_lines(tmp_path):
    assert list(read_parses(write(tmp_path / "a.mrg", SPREAD))) == [WHOLE, OH]
    assert list(read_parses(write(tmp_path / "b", WHOLE["target"] + "\r\n"))) == [WHOLE]


def test_each_file_is_a_corpus_and_options_clean_its_trees(tmp_path):
    write(tmp_path / "a.mrg", SPREAD)
    write(tmp_path / "b.mrg.gz", "(TOP (NP=1 (NN x)))\n")
    config = DataConfig(name="bracketed_trees", train_text=f"{tmp_path}/*", weights="1,2")
    train = open_split(config, "train")
    assert list(train) == [CLEAN, OH, {"source": "x", "target": "(TOP (NP (NN x)))"}]
    assert train.weights == (1, 2)
    not_cleaned = {"remove_traces": False, "remove_function_tags": False}
    config = DataConfig(name="bracketed_trees", train_text=f"{tmp_path}/a.mrg", **not_cleaned)
    assert list(open_split(config, "train")) == [WHOLE, OH]


def test_trees_have_words_and_tags(tmp_path):
    path = write(tmp_path / "trees", "(TOP (NP (DT The) (NN end)))\r\n(TOP (UH Oh))\n")
    expected = [{"text": "The end", "tags": "DT NN"}, {"text": "Oh", "tags": "UH"}]
    assert list(read_tagged_trees(path)) == expected


@pytest.mark.parametrize("name", ["own.tsv", "own.tsv.gz"])
def test_sentences_are_separated_by_blank_lines(tmp_path, name):
    path = write(tmp_path / name, "\ufeff\r\nThe\tDT\r\nend\tNN\r\n\r\n \r\né\tFW\r\n")
    sentences = read_tagged_words(path)
    assert list(sentences) == [{"text": "The end", "tags": "DT NN"}, {"text": "é", "tags": "FW"}]
    assert sentences[-1] == sentences[1]
