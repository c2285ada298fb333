# SPDX-License-Identifier: Apache-2.0
"""Tab-separated files of tagged words."""

import pytest

from tests.data.writing import write
from transformer_jax.data.config import DataConfig
from transformer_jax.data.files.tsv import read_tagged_words
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError


@pytest.mark.parametrize("name", ["own.tsv", "own.tsv.gz"])
def test_sentences_are_separated_by_blank_lines(tmp_path, name):
    path = write(tmp_path / name, "\ufeff\r\nThe\tDT\r\nend\tNN\r\n\r\n \r\né\tFW\r\n")
    sentences = read_tagged_words(path)
    assert list(sentences) == [{"text": "The end", "tags": "DT NN"}, {"text": "é", "tags": "FW"}]
    assert sentences[-1] == sentences[1]


def test_each_file_of_tagged_words_is_a_corpus(tmp_path):
    for word in ("a", "b"):
        write(tmp_path / f"{word}.tsv", f"{word}\tNN\n")
    config = DataConfig(name="tagged_words", train_text=f"{tmp_path}/*.tsv", weights="1,2")
    train = open_split(config, "train")
    assert [example["text"] for example in train] == ["a", "b"] and train.weights == (1, 2)
    with pytest.raises(UserError, match="data.valid_text is not set: tagged_words"):
        open_split(config, "valid")
