# SPDX-License-Identifier: Apache-2.0
"""Sets of `datasets` in local folders, and TFDS without TensorFlow: its mock data, and builders
defined here. No network."""

import importlib
import json
import sys

import pytest

from tests.refusals import assert_refused
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError


@pytest.fixture(scope="module")
def builders():
    """The module of the builders, which are registered when it is imported."""
    return importlib.import_module("tests.data.sets.tfds_builders")


def tfds_config(tmp_path, name="small_reviews", **fields):
    return DataConfig(name="tfds", dir=str(tmp_path), tfds_name=name, **fields)


def by_text(examples):
    return sorted(examples, key=lambda example: example["text"])


def test_texts_are_read(builders, tmp_path):
    assert by_text(open_split(tfds_config(tmp_path), "train")) == [
        {"text": f"train {n} é"} for n in range(3)
    ]
    assert list(open_split(tfds_config(tmp_path, text_field="author"), "valid")) == [
        {"text": "author 0"}
    ]
    assert list(open_split(tfds_config(tmp_path), "test")) == [{"text": "test 0 é"}]
    assert "tensorflow" not in sys.modules


def test_labels_and_second_texts_are_read(builders, tmp_path):
    fields = {"label_field": "opinion"}
    assert by_text(open_split(tfds_config(tmp_path, **fields), "train")) == [
        {"text": f"train {n} é", "label": label} for n, label in enumerate(builders.LABELS["train"])
    ]
    fields = {"text_field": "reply", "pair_field": "text", "label_field": "author"}
    assert list(open_split(tfds_config(tmp_path, **fields), "valid")) == [
        {"text": "reply 0", "pair": "validation 0 é", "label": "author 0"}
    ]


@pytest.mark.parametrize(
    "name, fields, keys",
    [
        ("pg19", {"text_field": "book_text"}, {"text"}),
        ("wiki40b/en", {}, {"text"}),
        ("glue/sst2", {"text_field": "sentence", "label_field": "label"}, {"text", "label"}),
        (
            "glue/rte",
            {"text_field": "sentence1", "pair_field": "sentence2", "label_field": "label"},
            {"text", "pair", "label"},
        ),
    ],
)
def test_public_text_builders_are_found(builders, tmp_path, name, fields, keys):
    with builders.tfds.testing.mock_data(num_examples=4):
        examples = open_split(tfds_config(tmp_path, name, **fields), "train")
        assert len(examples) == 4 and examples[0].keys() == keys
        assert all(isinstance(text, str) for text in examples[0].values())
        if name == "glue/rte":
            assert {example["label"] for example in examples} <= {"entailment", "not_entailment"}
    assert "tensorflow" not in sys.modules


def refuse(*_, **__):
    raise OSError("no network here")


def translation_config(tmp_path, name="small_translate", source="en", target="de"):
    return DataConfig(
        name="tfds",
        dir=str(tmp_path),
        tfds_name=name,
        source_language=source,
        target_language=target,
    )


def pairs(source):
    return {(pair["source"], pair["target"]) for pair in source}


def test_translations_are_read_in_either_direction(builders, tmp_path):
    assert pairs(open_split(translation_config(tmp_path), "train")) == set(builders.PAIRS["train"])
    back = open_split(translation_config(tmp_path, source="de", target="en"), "valid")
    assert pairs(back) == {("Vier.", "Four.")}
    assert list(tmp_path.rglob("*.array_record*"))
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize(
    "name, source, target",
    [
        ("wmt14_translate", "de", "en"),
        ("wmt14_translate/de-en", "de", "en"),
        ("ted_hrlr_translate", "en", "ru"),
    ],
)
def test_public_translation_builders_are_found_with_their_languages(
    builders, tmp_path, name, source, target
):
    with builders.tfds.testing.mock_data(num_examples=4):
        for split in ("train", "valid", "test"):
            examples = open_split(translation_config(tmp_path, name, source, target), split)
            assert len(examples) == 4
            assert all(isinstance(text, str) for text in examples[0].values())


def test_what_tfds_cannot_open_is_named(builders, tmp_path, monkeypatch):
    for method in ("download", "download_and_extract"):
        monkeypatch.setattr(builders.tfds.download.DownloadManager, method, refuse)

    def texts(split="train", **fields):
        return lambda: open_split(tfds_config(tmp_path, **fields), split)

    def translations(split="train", **changes):
        return lambda: open_split(translation_config(tmp_path, **changes), split)

    assert_refused(
        {
            "data.tfds_name is not set": texts(name=None),
            "no builder 'small_review'": texts(name="small_review"),
            "no builder 'glue/sst3'": texts(name="glue/sst3"),
            "split train has no column 'sentence' (data.text_field); its columns are 'te": texts(
                text_field="sentence"
            ),
            "pg19, split train has no column 'text' (data.text_field)": texts(name="pg19"),
            "has no column 'pair' (data.pair_field)": texts(pair_field="pair"),
            "'opinion' is 0, not text": texts(text_field="opinion"),
            "'score' is 0.5; a label is": texts(label_field="score"),
            "split test, row 1: no label in the column 'opinion'": texts(
                "test", label_field="opinion"
            ),
            "data.tfds_name lm1b: split 'validation' cannot be opened": texts("valid", name="lm1b"),
            "does not have the languages en and fr; it has de-en": translations(target="fr"),
            "no builder 'small_translat'": translations(name="small_translat"),
            "needs data.source_language and": translations(source=None),
            "needs data.source_language and data.target_language together": translations(
                target=None
            ),
            "split 'test' cannot be opened": translations("test"),
        }
    )


def test_without_the_package_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(UserError, match="EXTRAS=tfds"):
        open_split(translation_config(tmp_path), "train")


@pytest.fixture
def datasets(monkeypatch):
    """The library, offline. It is slow to import."""
    library = pytest.importorskip("datasets")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    library.disable_progress_bars()
    return library


def hf_config(folder, **fields):
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
    corpus = open_split(hf_config(folder), "train")
    assert list(corpus) == [{"text": "a"}, {"text": "b"}]
    assert list(open_split(hf_config(folder), "valid")) == [{"text": "c"}]
    corpus = open_split(hf_config(folder, label_field="label", pair_field="title"), "train")
    assert corpus[1] == {"text": "b", "pair": "B", "label": "bad"}
    assert open_split(hf_config(folder, label_field="stars"), "train")[1]["label"] == "2"


def test_a_saved_set_without_splits_is_training_data(datasets, tmp_path):
    datasets.Dataset.from_dict({"body": ["x", "y"]}).save_to_disk(tmp_path / "one")
    assert open_split(hf_config(tmp_path / "one", text_field="body"), "train")[1] == {"text": "y"}
    with pytest.raises(UserError, match="has no split 'validation'; it has train"):
        open_split(hf_config(tmp_path / "one", text_field="body"), "valid")


def test_translations_in_columns_or_in_one_are_read(datasets, tmp_path):
    pairs = [{"en": "a dog", "de": "ein Hund"}, {"en": "a cat", "de": "eine Katze"}]
    features = datasets.Features({"translation": datasets.Translation(["en", "de"])})
    of_kind = datasets.Dataset.from_dict({"translation": pairs}, features=features)
    of_kind.save_to_disk(tmp_path / "pairs")
    by_column = {language: [pair[language] for pair in pairs] for language in ("en", "de")}
    datasets.Dataset.from_dict(by_column).save_to_disk(tmp_path / "columns")
    for name in ("pairs", "columns"):
        given = hf_config(tmp_path / name, source_language="de", target_language="en")
        assert open_split(given, "train")[1] == {"source": "eine Katze", "target": "a cat"}
        with pytest.raises(UserError, match=r"no column 'fr' .*; its columns are 'en', 'de'"):
            open_split(
                hf_config(tmp_path / name, source_language="fr", target_language="en"), "train"
            )


def test_a_folder_of_data_files_is_read_whole_or_in_blocks(datasets, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    lines = [json.dumps({"text": f"text {i}"}) + "\n" for i in range(40)]
    (folder / "train.jsonl").write_text("".join(lines))
    given = hf_config(folder, dir=str(tmp_path / "cache"))
    assert open_split(given, "train")[39] == {"text": "text 39"}
    blocks = open_split(hf_config(folder, block_megabytes=1e-4), "train")
    assert len(blocks) > 5
    found = [text for i in range(len(blocks)) for text in blocks.documents(i)]
    assert found == [f"text {i}" for i in range(40)]


def test_what_hugging_face_cannot_open_is_named(folder, tmp_path):
    def rows(split="train", path=folder, **fields):
        return lambda: open_split(hf_config(path, **fields), split)

    unset = DataConfig(name="hf_dataset")
    assert_refused(
        {
            "data.hf_name nobody/nothing cannot be loaded": rows(path="nobody/nothing"),
            "cannot be loaded": rows(path=tmp_path / "none"),
            "data.hf_name is not set": lambda: open_split(unset, "train"),
            "has no split 'test'; it has train, validation": rows("test"),
            "has no column 'body'": rows(text_field="body"),
            "'stars' is 1, not text": rows(text_field="stars"),
            "data.block_megabytes: the files of": rows(block_megabytes=1.0),
            "split valid, row 1: no label in the column 'label'; write one": rows(
                "valid", label_field="label"
            ),
        }
    )


def test_rows_without_text_are_left_out_and_odd_ones_named(datasets, tmp_path, caplog):
    rows = [{"en": "a", "de": "b"}, {"en": "c", "de": None}, {"en": " ", "de": "d"}]
    datasets.DatasetDict(
        {split: datasets.Dataset.from_list(rows) for split in ("train", "validation")}
    ).save_to_disk(tmp_path / "pairs")
    given = hf_config(tmp_path / "pairs", source_language="en", target_language="de")
    assert list(open_split(given, "train")) == [{"source": "a", "target": "b"}]
    assert "split train: no text (the first: row 2)" in caplog.text
    assert [pair["target"] for pair in open_split(given, "valid")] == ["b", "", "d"]
    texts = hf_config(tmp_path / "pairs", text_field="de")
    for split in ("train", "valid"):
        assert [example["text"] for example in open_split(texts, split)] == ["b", "d"]
    labels = hf_config(tmp_path / "pairs", text_field="en", label_field="de")
    with pytest.raises(UserError, match="split train, row 2: no label in the column 'de'"):
        open_split(labels, "train")
    skipping = hf_config(tmp_path / "pairs", text_field="en", label_field="de", on_bad_row="skip")
    assert list(open_split(skipping, "train")) == [{"text": "a", "label": "b"}]
