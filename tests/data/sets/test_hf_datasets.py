# SPDX-License-Identifier: Apache-2.0
"""Sets of the library `datasets` in local folders, without the hub."""

import json

import pytest

from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError


@pytest.fixture(autouse=True)
def datasets(monkeypatch):
    """The library, offline. It is slow to import."""
    library = pytest.importorskip("datasets")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    library.disable_progress_bars()
    return library


def config(folder, **fields):
    return DataConfig(name="hf_dataset", hf_name=str(folder), **fields)


@pytest.fixture
def folder(datasets, tmp_path):
    """Labeled texts with two splits, written by `save_to_disk`."""
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "title": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["good", "bad"]),
            "stars": datasets.Value("int32"),
        }
    )
    rows = {
        "text": ["a", "b", "c"],
        "title": ["A", "B", "C"],
        "label": [0, 1, -1],
        "stars": [1, 2, 3],
    }
    whole = datasets.Dataset.from_dict(rows, features=features)
    found = datasets.DatasetDict({"train": whole.select([0, 1]), "validation": whole.select([2])})
    found.save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_text_labels_and_second_texts_are_read(folder):
    corpus = open_split(config(folder), "train")
    assert list(corpus) == [{"text": "a"}, {"text": "b"}]
    assert list(open_split(config(folder), "valid")) == [{"text": "c"}]
    corpus = open_split(config(folder, label_field="label", pair_field="title"), "train")
    assert corpus[1] == {"text": "b", "pair": "B", "label": "bad"}


def test_a_saved_set_without_splits_is_training_data(datasets, tmp_path):
    datasets.Dataset.from_dict({"body": ["x", "y"]}).save_to_disk(tmp_path / "one")
    assert open_split(config(tmp_path / "one", text_field="body"), "train")[1] == {"text": "y"}
    with pytest.raises(UserError, match="has no split 'validation'; it has train"):
        open_split(config(tmp_path / "one", text_field="body"), "valid")


def test_translations_are_read(datasets, tmp_path):
    pairs = [{"en": "a dog", "de": "ein Hund"}, {"en": "a cat", "de": "eine Katze"}]
    features = datasets.Features({"translation": datasets.Translation(["en", "de"])})
    of_kind = datasets.Dataset.from_dict({"translation": pairs}, features=features)
    of_kind.save_to_disk(tmp_path / "pairs")
    by_column = {language: [pair[language] for pair in pairs] for language in ("en", "de")}
    datasets.Dataset.from_dict(by_column).save_to_disk(tmp_path / "columns")
    for name in ("pairs", "columns"):
        given = config(tmp_path / name, source_language="de", target_language="en")
        assert open_split(given, "train")[1] == {"source": "eine Katze", "target": "a cat"}
        with pytest.raises(UserError, match=r"does not have 'fr'; it has en, de"):
            open_split(config(tmp_path / name, source_language="fr", target_language="en"), "train")
    with pytest.raises(UserError, match="data.target_language is not set"):
        open_split(config(tmp_path / "pairs", source_language="de"), "train")


def test_a_folder_of_data_files_is_read_whole_or_in_blocks(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    lines = [json.dumps({"text": f"text {i}"}) + "\n" for i in range(40)]
    (folder / "train.jsonl").write_text("".join(lines))
    given = config(folder, dir=str(tmp_path / "cache"))
    assert open_split(given, "train")[39] == {"text": "text 39"}
    blocks = open_split(config(folder, block_megabytes=1e-4), "train")
    assert len(blocks) > 5
    found = [text for i in range(len(blocks)) for text in blocks.documents(i)]
    assert found == [f"text {i}" for i in range(40)]


def test_errors_are_one_line(folder, tmp_path):
    for given, split, message in (
        (config("nobody/nothing"), "train", "data.hf_name nobody/nothing cannot be loaded"),
        (config(tmp_path / "none"), "train", "cannot be loaded"),
        (DataConfig(name="hf_dataset"), "train", "data.hf_name is not set"),
        (config(folder), "test", "has no split 'test'; it has train, validation"),
        (config(folder, text_field="body"), "train", "data.text_field: .* does not have 'body'"),
        (config(folder, text_field="stars"), "train", "data.text_field: stars of .* is not text"),
        (config(folder, label_field="stars"), "train", "is not a class label or text"),
        (config(folder, block_megabytes=1.0), "train", "data.block_megabytes: the files of"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            open_split(given, split)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="split valid, row 1: no label in label; choose another"):
        open_split(config(folder, label_field="label"), "valid")


def test_rows_without_text_are_left_out_and_odd_ones_named(datasets, tmp_path, caplog):
    rows = [{"en": "a", "de": "b"}, {"en": "c", "de": None}, {"en": " ", "de": "d"}]
    datasets.DatasetDict(
        {split: datasets.Dataset.from_list(rows) for split in ("train", "validation")}
    ).save_to_disk(tmp_path / "pairs")
    given = config(tmp_path / "pairs", source_language="en", target_language="de")
    assert list(open_split(given, "train")) == [{"source": "a", "target": "b"}]
    assert "split train: no text (the first: row 2)" in caplog.text
    assert [pair["target"] for pair in open_split(given, "valid")] == ["b", "", "d"]
    texts = config(tmp_path / "pairs", text_field="de")
    for split in ("train", "valid"):
        assert [example["text"] for example in open_split(texts, split)] == ["b", "d"]
    labels = config(tmp_path / "pairs", text_field="en", label_field="de")
    with pytest.raises(UserError, match="split train, row 2: no label in de"):
        open_split(labels, "train")
    skipping = config(tmp_path / "pairs", text_field="en", label_field="de", on_bad_row="skip")
    assert list(open_split(skipping, "train")) == [{"text": "a", "label": "b"}]
