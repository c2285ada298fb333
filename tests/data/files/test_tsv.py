# SPDX-License-Identifier: Apache-2.0
"""Tab-separated files of tagged words."""

import pytest

from tests.data.writing import write
from transformer_jax.data.files.tsv import read_tagged_words


@pytest.mark.parametrize("name", ["own.tsv", "own.tsv.gz"])
def test_sentences_are_separated_by_blank_lines(tmp_path, name):
    path = write(tmp_path / name, "\ufeff\r\nThe\tDT\r\nend\tNN\r\n\r\n \r\né\tFW\r\n")
    sentences = read_tagged_words(path)
    assert list(sentences) == [{"text": "The end", "tags": "DT NN"}, {"text": "é", "tags": "FW"}]
    assert sentences[-1] == sentences[1]
