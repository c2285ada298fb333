"""TFDS without TensorFlow and without a network: its mock data, and builders of our own."""

import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError

LABELS = {"train": ["bad", "good", "bad"], "validation": ["good"], "test": [-1]}


class SmallReviews(tfds.core.GeneratorBasedBuilder):
    """A few labelled pairs of texts; the labels of the test are kept back."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "The first."}

    def _info(self):
        features = {
            "text": tfds.features.Text(),
            "reply": tfds.features.Text(),
            "opinion": tfds.features.ClassLabel(names=["bad", "good"]),
            "author": np.str_,
            "score": np.float32,
        }
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in LABELS}

    def _generate_examples(self, split):
        for n, label in enumerate(LABELS[split]):
            author = f"author {n}"
            text = {"text": f"{split} {n} é", "reply": f"reply {n}", "author": author}
            yield n, text | {"opinion": label, "score": 0.5}


def config(tmp_path, name="small_reviews", **fields):
    return DataConfig(name="tfds", dir=str(tmp_path), tfds_name=name, **fields)


def by_text(examples):
    return sorted(examples, key=lambda example: example["text"])


def test_a_text_is_read(tmp_path):
    assert by_text(open_split(config(tmp_path), "train")) == [
        {"text": f"train {n} é"} for n in range(3)
    ]
    assert list(open_split(config(tmp_path, text_field="author"), "valid")) == [
        {"text": "author 0"}
    ]
    assert list(open_split(config(tmp_path), "test")) == [{"text": "test 0 é"}]
    assert "tensorflow" not in sys.modules


def test_labels_are_read_by_name_and_pairs_if_asked_for(tmp_path):
    fields = {"label_field": "opinion"}
    assert by_text(open_split(config(tmp_path, **fields), "train")) == [
        {"text": f"train {n} é", "label": label} for n, label in enumerate(LABELS["train"])
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
def test_the_public_builders_are_found(tmp_path, name, fields, keys):
    with tfds.testing.mock_data(num_examples=4):
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
        ({"label_field": "opinion"}, "test", "an example has no label in opinion"),
        ({"name": "lm1b"}, "valid", "data.tfds_name lm1b: split 'validation' cannot be had"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, monkeypatch, fields, split, message):
    # Nothing is to be downloaded here.
    monkeypatch.setattr(tfds.download.DownloadManager, "download", refuse)
    monkeypatch.setattr(tfds.download.DownloadManager, "download_and_extract", refuse)
    with pytest.raises(UserError, match=message):
        open_split(config(tmp_path, **fields), split)


def refuse(*_, **__):
    raise OSError("no network here")
