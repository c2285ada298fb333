# SPDX-License-Identifier: Apache-2.0
"""TFDS without TensorFlow and network: its mock data, and builders defined here."""

import importlib
import sys

import pytest

from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError


@pytest.fixture(scope="module", autouse=True)
def builders():
    """The module of the builders, which are registered when it is imported."""
    return importlib.import_module("tests.data.sets.tfds_builders")


def config(tmp_path, name="small_reviews", **fields):
    return DataConfig(name="tfds", dir=str(tmp_path), tfds_name=name, **fields)


def by_text(examples):
    return sorted(examples, key=lambda example: example["text"])


def test_texts_are_read(tmp_path):
    assert by_text(open_split(config(tmp_path), "train")) == [
        {"text": f"train {n} é"} for n in range(3)
    ]
    assert list(open_split(config(tmp_path, text_field="author"), "valid")) == [
        {"text": "author 0"}
    ]
    assert list(open_split(config(tmp_path), "test")) == [{"text": "test 0 é"}]
    assert "tensorflow" not in sys.modules


def test_labels_and_second_texts_are_read(builders, tmp_path):
    fields = {"label_field": "opinion"}
    assert by_text(open_split(config(tmp_path, **fields), "train")) == [
        {"text": f"train {n} é", "label": label} for n, label in enumerate(builders.LABELS["train"])
    ]
    fields = {"text_field": "reply", "pair_field": "text", "label_field": "author"}
    assert list(open_split(config(tmp_path, **fields), "valid")) == [
        {"text": "reply 0", "pair": "validation 0 é", "label": "author 0"}
    ]


@pytest.mark.parametrize(
    "name, fields, keys",
    [
        ("lm1b", {}, {"text"}),
        ("pg19", {"text_field": "book_text"}, {"text"}),
        ("imdb_reviews", {"label_field": "label"}, {"text", "label"}),
        ("yelp_polarity_reviews", {"label_field": "label"}, {"text", "label"}),
        ("wiki40b/en", {}, {"text"}),
        ("cnn_dailymail", {"text_field": "article"}, {"text"}),
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
        examples = open_split(config(tmp_path, name, **fields), "train")
        assert len(examples) == 4 and examples[0].keys() == keys
        assert all(isinstance(text, str) for text in examples[0].values())
        if name == "glue/rte":
            assert {example["label"] for example in examples} <= {"entailment", "not_entailment"}
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize(
    "fields, split, message",
    [
        ({"name": None}, "train", "data.tfds_name is not set"),
        ({"name": "small_review"}, "train", "no builder 'small_review'"),
        ({"name": "glue/sst3"}, "train", "no builder 'glue/sst3'"),
        (
            {"text_field": "sentence"},
            "train",
            "data.text_field: small_reviews does not have 'sentence'; it has text, reply, ",
        ),
        ({"name": "pg19"}, "train", "data.text_field: pg19 does not have 'text'; .* book_text"),
        ({"pair_field": "pair"}, "train", "data.pair_field: small_reviews does not have 'pair'"),
        ({"text_field": "opinion"}, "train", "data.text_field: opinion of .* is not text"),
        ({"label_field": "score"}, "train", "score of small_reviews is not a class label or text"),
        ({"label_field": "opinion"}, "test", "split test, row 1: no label in opinion"),
        ({"name": "lm1b"}, "valid", "data.tfds_name lm1b: split 'validation' cannot be opened"),
    ],
)
def test_missing_text_sets_and_fields_are_named(
    builders, tmp_path, monkeypatch, fields, split, message
):
    # Prevents downloads.
    for method in ("download", "download_and_extract"):
        monkeypatch.setattr(builders.tfds.download.DownloadManager, method, refuse)
    with pytest.raises(UserError, match=message):
        open_split(config(tmp_path, **fields), split)


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
        ("wmt14_translate", "en", "fr"),
        ("wmt16_translate", "en", "ro"),
        ("ted_hrlr_translate", "pt", "en"),
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


@pytest.mark.parametrize(
    "changes, split, message",
    [
        ({"target": "fr"}, "train", "does not have the languages en and fr; it has de-en"),
        ({"name": "small_translat"}, "train", "no builder 'small_translat'"),
        ({"name": ""}, "train", "data.tfds_name is not set"),
        ({"source": None}, "train", "data.source_language is not set"),
        ({"target": None}, "train", "data.target_language is not set"),
        ({}, "test", "split 'test' cannot be opened"),
    ],
)
def test_missing_translation_sets_are_named(tmp_path, changes, split, message):
    with pytest.raises(UserError, match=message):
        open_split(translation_config(tmp_path, **changes), split)


def test_without_the_package_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(UserError, match="EXTRAS=tfds"):
        open_split(translation_config(tmp_path), "train")
