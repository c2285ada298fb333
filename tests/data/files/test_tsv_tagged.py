import gzip

import pytest

from transformer_jax.data.config import DataConfig
from transformer_jax.data.files.tsv import read_tagged_trees, read_tagged_words
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError


def write(path, text: str) -> str:
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.mark.parametrize("name", ["own.tsv", "own.tsv.gz"])
def test_sentences_stand_between_blank_lines(tmp_path, name):
    path = write(tmp_path / name, "\ufeff\r\nThe\tDT\r\nend\tNN\r\n\r\n \r\né\tFW\r\n")
    sentences = read_tagged_words(path)
    assert list(sentences) == [{"text": "The end", "tags": "DT NN"}, {"text": "é", "tags": "FW"}]
    assert sentences[-1] == sentences[1]


@pytest.mark.parametrize(
    "line, problem",
    [
        ("word", "1 columns"),
        ("a\tNN\tB-NP", "3 columns"),
        ("\tNN", "no word"),
        ("a\t", "no tag"),
        ("New York\tNNP", "a space within"),
        ("a\tNN NNS", "a space within"),
    ],
)
def test_a_line_of_another_form_is_named(tmp_path, line, problem):
    path = write(tmp_path / "own.tsv", f"a\tDT\n\n{line}\na\tDT\n")
    with pytest.raises(UserError, match=f"^{path}, line 3: {problem}.*; write word<tab>tag"):
        read_tagged_words(path)


def test_blank_lines_alone_are_an_error(tmp_path):
    path = write(tmp_path / "own.tsv", "\n\n")
    with pytest.raises(UserError, match=f"^{path} has no sentence"):
        read_tagged_words(path)


def test_each_file_that_is_named_is_a_corpus(tmp_path):
    for word in ("a", "b"):
        write(tmp_path / f"{word}.tsv", f"{word}\tNN\n")
    config = DataConfig(name="tagged_words", train_text=f"{tmp_path}/*.tsv", weights="1,2")
    train = open_split(config, "train")
    assert [example["text"] for example in train] == ["a", "b"] and train.weights == (1, 2)
    with pytest.raises(UserError, match="data.valid_text is not set: tagged_words"):
        open_split(config, "valid")


def test_trees_have_words_and_tags(tmp_path):
    path = write(tmp_path / "trees", "(TOP (NP (DT The) (NN end)))\r\n(TOP (UH Oh))\n")
    expected = [{"text": "The end", "tags": "DT NN"}, {"text": "Oh", "tags": "UH"}]
    assert list(read_tagged_trees(path)) == expected
