# SPDX-License-Identifier: Apache-2.0
"""Opening of data sets by name: splits, several files, several sets, and errors of the config."""

import dataclasses
from functools import partial

import pytest

from tests.data.writing import write
from tests.refusals import assert_refused
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sets.public import GLUE_TASKS
from transformer_jax.data.sources import SOURCES, open_corpora, open_split
from transformer_jax.errors import UserError


def write_lines(path, *lines):
    return write(path, "".join(f"{line}\n" for line in lines))


@pytest.fixture
def parallel_text(tmp_path) -> DataConfig:
    return DataConfig(
        name="parallel_text",
        train_source=write_lines(tmp_path / "train.en.gz", "one", "", "three"),
        train_target=write_lines(tmp_path / "train.de", "eins", "zwei", "drei"),
        test_source=write_lines(tmp_path / "test.en", "", "two"),
        test_target=write_lines(tmp_path / "test.de.gz", "eins", "zwei"),
    )


def test_parallel_text_reads_the_users_files(parallel_text):
    assert list(open_split(parallel_text, "train")) == [
        {"source": "one", "target": "eins"},
        {"source": "three", "target": "drei"},
    ]
    assert list(open_split(parallel_text, "test")) == [  # evaluation keeps every line
        {"source": "", "target": "eins"},
        {"source": "two", "target": "zwei"},
    ]


@pytest.fixture
def multi30k_folder(tmp_path):
    """Files of multi30k, each with one line: its stem and language."""
    folder = tmp_path / "multi30k"
    folder.mkdir()
    for stem in ("train", "val", "test_2016_flickr"):
        write_lines(folder / f"{stem}.en", f"{stem} en")
        write_lines(folder / f"{stem}.de.gz", f"{stem} de")
        write_lines(folder / f"{stem}.fr.gz", f"{stem} fr")
    return folder


@pytest.mark.parametrize("source, target", [("en", "de"), ("en", "fr"), ("de", "en")])
@pytest.mark.parametrize(
    "split, stem", [("train", "train"), ("valid", "val"), ("test", "test_2016_flickr")]
)
def test_multi30k_reads_the_files_of_a_split(multi30k_folder, source, target, split, stem):
    config = DataConfig(name=f"multi30k_{source}_{target}", dir=str(multi30k_folder))
    expected = [{"source": f"{stem} {source}", "target": f"{stem} {target}"}]
    assert list(open_split(config, split)) == expected


def test_several_files_are_several_corpora(tmp_path, caplog):
    for n in (1, 2):
        write_lines(tmp_path / f"{n}.en", f"{n}", f"{n}{n}")
        write_lines(tmp_path / f"{n}.de", f"{n}", f"{n}{n}")
    config = DataConfig(
        name="parallel_text",
        train_source=f"{tmp_path}/*.en",
        train_target=f"{tmp_path}/1.de,{tmp_path}/2.de",
        weights="3,1",
    )
    train = open_split(config, "train")
    assert [pair["source"] for pair in train] == ["1", "11", "2", "22"]
    assert train.weights == (3.0, 1.0)
    assert list(opening(config, "train", tags=",<b>")())[2]["source"] == "<b>2"
    assert not caplog.text
    tagged = opening(config, "train", tags="target:<a>,<b>")()
    assert "each training example has a tag, and other splits have none" in caplog.text
    assert list(tagged)[1:3] == [
        {"source": "11", "target": "<a>11"},
        {"source": "<b>2", "target": "2"},
    ]
    assert tagged.weights == (3.0, 1.0)
    assert_refused(
        {
            "has 1 tags, but parallel_text has 2 corpora": opening(config, "train", tags="<bt>"),
            "has no text": opening(config, "train", tags=",text:<bt>"),
            "names 2 files, data.train_target 1": opening(
                config, "train", train_target=f"{tmp_path}/1.de"
            ),
            "has 3 numbers, but parallel_text has 2 corpora": opening(
                config, "train", weights="1,1,1"
            ),
        }
    )


def test_several_sets_train_together_and_the_first_is_evaluated(parallel_text, multi30k_folder):
    config = dataclasses.replace(
        parallel_text, name="parallel_text,multi30k_en_de", dir=str(multi30k_folder)
    )
    assert [pair["source"] for pair in open_split(config, "train")] == ["one", "three", "train en"]
    assert [pair["source"] for pair in open_split(config, "test")] == ["", "two"]


def test_each_set_may_have_its_own_folder(tmp_path, multi30k_folder):
    other = tmp_path / "wikitext2"
    other.mkdir()
    for split in ("train", "valid"):
        write_lines(other / f"wiki.{split}.tokens", f" {split} ")
    names, folders = "wikitext2,multi30k_en_de", f"{other},{multi30k_folder}"
    config = DataConfig(name=names, dir=folders)
    assert list(open_split(config, "train")) == [
        {"text": " train \n"},
        {"source": "train en", "target": "train de"},
    ]
    assert list(open_split(config, "valid")) == [{"text": " valid \n"}]
    assert_refused(
        {
            f"data.dir names 2 folders, data.name {count} ": opening(config, split, name=name)
            for name, split, count in (
                ("wikitext2", "valid", 1),
                (f"{names},scan_simple", "train", 3),
            )
        }
    )


def test_a_set_with_an_empty_folder_is_found_below_the_data_root(
    tmp_path, multi30k_folder, monkeypatch
):
    monkeypatch.setenv("TRANSFORMER_JAX_DATA", str(tmp_path))
    write_lines(tmp_path / "wiki.train.tokens", "text")
    config = DataConfig(name="wikitext2,multi30k_en_de", dir=f"{tmp_path},")
    assert len(open_split(config, "train")) == 2


def test_weights_that_are_not_positive_or_exclude_another_field_are_rejected():
    weights = ("0,1", "-1,2", "one", "nan,1", "inf,1", "", "1e300,1e-300")
    table = {f"weights is {text!r}": partial(DataConfig, weights=text) for text in weights}
    both = partial(DataConfig, weights="2,1", num_train_examples=5)
    blocks = partial(DataConfig, block_megabytes=1.0, num_train_examples=5)
    assert_refused(
        table
        | {
            "weights and num_train_examples exclude each other": both,
            "num_train_examples and block_megabytes exclude each other": blocks,
        }
    )


@pytest.mark.parametrize(
    "name, line", [("seq2seq_tsv", "a\tb"), ("json_lines", '{"source": "a", "target": "b"}')]
)
def test_pairs_may_be_in_one_file(tmp_path, name, line):
    config = DataConfig(name=name, valid_text=write_lines(tmp_path / "valid", line))
    assert list(open_split(config, "valid")) == [{"source": "a", "target": "b"}]


def test_training_may_use_only_the_first_examples(parallel_text):
    everything = open_split(parallel_text, "train")
    some = dataclasses.replace(parallel_text, num_train_examples=1)
    assert list(open_split(some, "train")) == [everything[0]]
    assert len(open_split(some, "test")) == len(open_split(parallel_text, "test"))


def opening(config, split, **changes):
    return lambda: open_split(dataclasses.replace(config, **changes), split)


def test_what_cannot_be_opened_is_refused(parallel_text, multi30k_folder, tmp_path):
    (tmp_path / "a.txt").write_text("One.\nTwo.\n")
    text = DataConfig(name="text", train_text=str(tmp_path / "a.txt"), num_train_examples=2)
    assert len(opening(text, "train", documents="line")()) == 2
    several = dataclasses.replace(
        parallel_text, name="multi30k_en_de,text", dir=str(multi30k_folder)
    )
    unknown = {
        f"{name} has no split 'dev': choose one of {', '.join(source_set.splits)}": opening(
            parallel_text, "dev", name=name
        )
        for name, source_set in SOURCES.items()
    }
    unset = {
        f"data.train_text is not set: {name}": opening(DataConfig(name=name), "train")
        for name in ("seq2seq_tsv", "json_lines")
    }
    assert_refused(
        unknown
        | unset
        | {
            "did you mean multi30k_en_de?": opening(parallel_text, "train", name="multi30k_ende"),
            "data.name is 'multi30k_en_d'": opening(
                several, "test", name="parallel_text,multi30k_en_d"
            ),
            "data.train_text is not set: text needs": opening(several, "train"),
            "data.valid_source is not set": opening(parallel_text, "valid"),
            "data.train_target is not set": opening(parallel_text, "train", train_target=None),
            "but there are 2 examples": opening(parallel_text, "train", num_train_examples=3),
            "is 2, but there are 1 documents: ": opening(text, "train"),
        }
    )


def test_the_corpora_of_a_split_have_names(tmp_path):
    """Files have their names, or numbers if names are equal; several sets have the sets' names."""
    for folder, name in (("a", "news"), ("a", "chat"), ("b", "news")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{name}.valid.txt").write_text(f"{name} of {folder}\n")
    for pattern, names in (("a/*", ["chat", "news"]), ("*/news*", ["0", "1"])):
        config = DataConfig(name="text", valid_text=f"{tmp_path}/{pattern}")
        assert list(open_corpora(config, "valid")) == names
    sets = DataConfig(
        name="text,conversations", valid_text=str(tmp_path / "a" / "news.valid.txt"), dir="/x"
    )
    with pytest.raises(UserError, match="news.valid.txt, line 1"):  # plain text is no conversation
        open_corpora(sets, "valid")
    (tmp_path / "turns.jsonl").write_text('{"instruction": "Add.", "output": "3", "text": "x"}\n')
    sets = dataclasses.replace(sets, valid_text=str(tmp_path / "turns.jsonl"))
    assert list(open_corpora(sets, "valid")) == ["text", "conversations"]


def test_sets_have_the_splits_that_their_modules_read():
    assert {name: SOURCES[name].splits for name in GLUE_TASKS} == {
        name: tuple(task.files) for name, task in GLUE_TASKS.items()
    }
