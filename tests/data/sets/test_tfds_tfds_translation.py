"""TFDS without TensorFlow and without a network: its mock data, and a builder of our own."""

import sys

import pytest
import tensorflow_datasets as tfds

from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError

PAIRS = {
    "train": [("One.", "Eins."), ("Two.", "Zwei."), ("Three.", "Drei.")],
    "validation": [("Four.", "Vier.")],
}


class SmallTranslate(tfds.core.GeneratorBasedBuilder):
    """A few pairs."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="de-en")]

    def _info(self):
        features = tfds.features.Translation(languages=("de", "en"))
        return self.dataset_info_from_configs(features=features)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in PAIRS}

    def _generate_examples(self, split):
        for n, (english, german) in enumerate(PAIRS[split]):
            yield n, {"en": english, "de": german}


def config(tmp_path, name="small_translate", source="en", target="de"):
    return DataConfig(
        name="tfds",
        dir=str(tmp_path),
        tfds_name=name,
        source_language=source,
        target_language=target,
    )


def pairs(source):
    return {(pair["source"], pair["target"]) for pair in source}


def test_a_builder_is_prepared_and_read_in_either_direction(tmp_path):
    assert pairs(open_split(config(tmp_path), "train")) == set(PAIRS["train"])
    back = open_split(config(tmp_path, source="de", target="en"), "valid")
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
def test_the_public_builders_are_found_with_their_languages(tmp_path, name, source, target):
    with tfds.testing.mock_data(num_examples=4):
        for split in ("train", "valid", "test"):
            examples = open_split(config(tmp_path, name, source, target), split)
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
        ({}, "test", "split 'test' cannot be had"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, changes, split, message):
    with pytest.raises(UserError, match=message):
        open_split(config(tmp_path, **changes), split)


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(UserError, match="EXTRAS=tfds"):
        open_split(config(tmp_path), "train")
