import gzip

import pytest

from transformer_jax.data.config import DataConfig
from transformer_jax.data.files.tsv import OWN_LAYOUTS, read_labeled
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError


def write(path, text: str) -> str:
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def test_the_header_says_whether_there_are_pairs(tmp_path):
    single = write(tmp_path / "single.tsv.gz", 'text\tlabel\n"A "quote\tgood\n\tbad\n')
    pairs = write(tmp_path / "pairs.tsv", "\ufefftext\tpair\tlabel\r\na\tb\tyes\r\n")
    assert list(read_labeled(single, OWN_LAYOUTS)) == [
        {"text": '"A "quote', "label": "good"},
        {"text": "", "label": "bad"},
    ]
    assert list(read_labeled(pairs, OWN_LAYOUTS)) == [{"text": "a", "pair": "b", "label": "yes"}]


def test_each_file_that_is_named_is_a_corpus(tmp_path):
    for n in (1, 2):
        write(tmp_path / f"{n}.tsv", f"text\tlabel\ntext {n}\t{n}\n")
    config = DataConfig(name="labeled_tsv", test_text=f"{tmp_path}/*.tsv")
    assert [example["label"] for example in open_split(config, "test")] == ["1", "2"]
    with pytest.raises(UserError, match="data.train_text is not set: labeled_tsv"):
        open_split(config, "train")


@pytest.mark.parametrize("header", ["label\ttext", "a text\tgood", "text", "text\tlabel\tpair"])
def test_another_header_is_shown_beside_what_is_expected(tmp_path, header):
    path = write(tmp_path / "own.tsv", f"{header}\na\tb\n")
    with pytest.raises(UserError) as error:
        read_labeled(path, OWN_LAYOUTS)
    shown = header.replace("\t", "<tab>")
    expected = "text<tab>label or text<tab>pair<tab>label"
    assert str(error.value) == (
        f"{path}: the header is {shown!r}; expected {expected}, tabs between"
    )


def test_of_a_long_first_line_only_the_start_is_shown(tmp_path):
    path = write(tmp_path / "own.tsv", "word " * 1000 + "\n")
    with pytest.raises(UserError) as error:
        read_labeled(path, OWN_LAYOUTS)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    "line, problem",
    [
        ("a", "1 columns; expected text<tab>label, 2 of them"),
        ("", "1 columns; expected"),
        ("a\tb\tc", "3 columns; expected"),
        ("a\t ", "no label"),
    ],
)
def test_a_line_of_another_form_is_named(tmp_path, line, problem):
    path = write(tmp_path / "own.tsv", f"text\tlabel\na\tb\n{line}\na\tb\n")
    with pytest.raises(UserError, match=f"^{path}, line 3: {problem}"):
        read_labeled(path, OWN_LAYOUTS)


def test_a_header_alone_is_an_error(tmp_path):
    path = write(tmp_path / "own.tsv", "text\tlabel\n")
    with pytest.raises(UserError, match=f"^{path} has no example"):
        read_labeled(path, OWN_LAYOUTS)
