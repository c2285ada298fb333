# SPDX-License-Identifier: Apache-2.0
"""Opening of data sets by name: splits, several files, several sets, and errors of the config."""

import dataclasses
import gzip

import pytest

from transformer_jax.data.config import DataConfig
from transformer_jax.data.sets import embedded, glue, multi30k, scan
from transformer_jax.data.sources import SOURCES, open_corpora, open_split
from transformer_jax.errors import UserError


def write_lines(path, *lines: str) -> str:
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.mark.parametrize(
    "field, value",
    [
        ("max_source_length", 1),
        ("max_target_length", 0),
        ("synthetic_size", 0),
        ("num_train_examples", 0),
    ],
)
def test_impossible_sizes_are_rejected(field, value):
    with pytest.raises(ValueError, match=field):
        DataConfig(**{field: value})


def test_the_error_for_an_unknown_set_suggests_the_nearest():
    with pytest.raises(UserError, match="data.name is 'multi30k_ende', .* mean multi30k_en_de?"):
        open_split(DataConfig(name="multi30k_ende"), "train")


@pytest.mark.parametrize("name", SOURCES)
def test_the_error_for_an_unknown_split_lists_the_splits(name):
    with pytest.raises(UserError) as error:
        open_split(DataConfig(name=name), "dev")
    assert f"{name} has no split 'dev'" in str(error.value)
    for split in SOURCES[name].splits:
        assert split in str(error.value)


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


def test_parallel_text_keeps_every_line_for_evaluation(parallel_text):
    assert list(open_split(parallel_text, "test")) == [
        {"source": "", "target": "eins"},
        {"source": "two", "target": "zwei"},
    ]


def test_parallel_text_names_a_missing_field(parallel_text):
    with pytest.raises(UserError, match="data.valid_source is not set"):
        open_split(parallel_text, "valid")
    with pytest.raises(UserError, match="data.train_target is not set"):
        open_split(DataConfig(name="parallel_text", train_source="train.en"), "train")


def test_paths_may_start_with_the_home_folder(parallel_text, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = DataConfig(name="parallel_text", test_source="~/test.en", test_target="~/test.de.gz")
    assert len(open_split(config, "test")) == 2


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


def test_multi30k_is_found_below_the_data_root(multi30k_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("TRANSFORMER_JAX_DATA", str(tmp_path))
    assert len(open_split(DataConfig(name="multi30k_en_fr"), "train")) == 1


def test_all_downloads_of_multi30k_are_pinned():
    languages = ("en", "de", "fr")
    names = {f"{stem}.{lang}" for stem in multi30k.FILE_STEMS.values() for lang in languages}
    assert set(multi30k.MULTI30K.files) == names
    for name, remote in multi30k.MULTI30K.files.items():
        assert remote.url.startswith("https://") and remote.name == f"{name}.gz"
        assert len(bytes.fromhex(remote.sha256)) == 32
    assert len({remote.sha256 for remote in multi30k.MULTI30K.files.values()}) == len(names)


def test_several_files_are_several_corpora(tmp_path):
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
    with pytest.raises(UserError, match="names 2 files, data.train_target 1"):
        open_split(dataclasses.replace(config, train_target=f"{tmp_path}/1.de"), "train")
    with pytest.raises(UserError, match="data.weights has 3 numbers, but .* 2 corpora"):
        open_split(dataclasses.replace(config, weights="1,1,1"), "train")


def test_several_sets_train_together_and_the_first_is_evaluated(parallel_text, multi30k_folder):
    config = dataclasses.replace(
        parallel_text, name="parallel_text,multi30k_en_de", dir=str(multi30k_folder)
    )
    assert [pair["source"] for pair in open_split(config, "train")] == ["one", "three", "train en"]
    assert [pair["source"] for pair in open_split(config, "test")] == ["", "two"]
    with pytest.raises(UserError, match="data.name is 'multi30k_en_d'"):
        open_split(dataclasses.replace(config, name="parallel_text,multi30k_en_d"), "test")


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
    for name, split in (("wikitext2", "valid"), (f"{names},scan_simple", "train")):
        with pytest.raises(UserError, match="data.dir names 2 folders, data.name . sets: set one"):
            open_split(dataclasses.replace(config, name=name), split)


def test_a_set_with_an_empty_folder_is_found_below_the_data_root(
    tmp_path, multi30k_folder, monkeypatch
):
    monkeypatch.setenv("TRANSFORMER_JAX_DATA", str(tmp_path))
    write_lines(tmp_path / "wiki.train.tokens", "text")
    config = DataConfig(name="wikitext2,multi30k_en_de", dir=f"{tmp_path},")
    assert len(open_split(config, "train")) == 2


def test_an_error_names_the_set_among_several(multi30k_folder):
    config = DataConfig(name="multi30k_en_de,text", dir=str(multi30k_folder))
    with pytest.raises(UserError, match="data.train_text is not set: text needs"):
        open_split(config, "train")


@pytest.mark.parametrize("weights", ["0,1", "-1,2", "one", "nan,1", "inf,1", "", "1e300,1e-300"])
def test_weights_that_are_not_positive_are_rejected(weights):
    with pytest.raises(ValueError, match="weights is "):
        DataConfig(weights=weights)


@pytest.mark.parametrize(
    "name, line", [("seq2seq_tsv", "a\tb"), ("json_lines", '{"source": "a", "target": "b"}')]
)
def test_pairs_may_be_in_one_file(tmp_path, name, line):
    config = DataConfig(name=name, valid_text=write_lines(tmp_path / "valid", line))
    assert list(open_split(config, "valid")) == [{"source": "a", "target": "b"}]
    with pytest.raises(UserError, match=f"data.train_text is not set: {name}"):
        open_split(config, "train")


def test_training_may_use_only_the_first_examples(parallel_text):
    everything = open_split(parallel_text, "train")
    some = dataclasses.replace(parallel_text, num_train_examples=1)
    assert list(open_split(some, "train")) == [everything[0]]
    assert len(open_split(some, "test")) == len(open_split(parallel_text, "test"))
    too_many = dataclasses.replace(parallel_text, num_train_examples=len(everything) + 1)
    with pytest.raises(UserError, match=f"but there are {len(everything)} examples"):
        open_split(too_many, "train")


def test_too_many_examples_of_running_text_are_documents(tmp_path):
    (tmp_path / "a.txt").write_text("One.\nTwo.\n")
    text = DataConfig(name="text", train_text=str(tmp_path / "a.txt"), num_train_examples=2)
    with pytest.raises(UserError, match=r"is 2, but there are 1 documents: .*data.documents"):
        open_split(text, "train")
    assert len(open_split(dataclasses.replace(text, documents="line"), "train")) == 2


def test_weights_exclude_a_number_of_examples():
    with pytest.raises(ValueError, match="exclude each other"):
        DataConfig(weights="2,1", num_train_examples=5)


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
    assert {name: SOURCES[name].splits for name in glue.TASKS} == {
        name: tuple(task.files) for name, task in glue.TASKS.items()
    }
    assert scan.SETS.keys() == {name for name in SOURCES if name.startswith("scan")}
    assert SOURCES["synthetic_en_de"].splits == embedded.SPLITS
