"""A run's tokenizers are stored whole, come back as they were, and damage has a name."""

import json
import pickle

import pytest

from transformer_jax.errors import UserError
from transformer_jax.tokenization import (
    TokenizerConfig,
    load_tokenizers,
    sides,
    train_tokenizers,
)

TEXTS = {"source": ["the old man", "a dog"], "target": ["der alte Mann", "ein Hund"]}


def train(directory, joint=True, texts=TEXTS):
    return train_tokenizers(TokenizerConfig("char", 50, joint), texts, directory)


@pytest.fixture
def directory(tmp_path):
    train(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_joint_vocabulary_is_one_object_that_knows_both_languages(directory):
    tokenizers = load_tokenizers(directory)
    assert names(directory) == ["joint.model", "sides.json"]
    assert tokenizers.joint
    assert tokenizers["source"] is tokenizers["target"]
    assert tokenizers["source"].count_unknown(tokenizers["source"].encode("the old Mann")) == 0


def test_separate_vocabularies_know_their_own_language(tmp_path):
    train(tmp_path / "tokenizer", joint=False)
    tokenizers = load_tokenizers(tmp_path / "tokenizer")
    assert names(tmp_path / "tokenizer") == ["sides.json", "source.model", "target.model"]
    assert not tokenizers.joint
    assert tokenizers["source"].count_unknown(tokenizers["source"].encode("dog")) == 0
    assert tokenizers["target"].count_unknown(tokenizers["target"].encode("dog")) == 1  # "g"


def test_one_sided_text_has_one_model_of_its_name(tmp_path):
    tokenizers = train(tmp_path / "tokenizer", texts={"text": ["the old man"]})
    assert names(tmp_path / "tokenizer") == ["sides.json", "text.model"]
    assert tokenizers["text"].decode(tokenizers["text"].encode("old man")) == "old man"


def test_loaded_and_pickled_tokenizers_encode_like_the_trained_ones(tmp_path):
    trained = train(tmp_path / "tokenizer")
    loaded = load_tokenizers(tmp_path / "tokenizer")
    unpickled = pickle.loads(pickle.dumps(loaded))
    expected = trained["target"].encode("der alte Hund")
    assert loaded["target"].encode("der alte Hund") == expected
    assert unpickled["target"].encode("der alte Hund") == expected
    assert unpickled.joint


def test_killed_while_storing_leaves_nothing_and_the_next_run_succeeds(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sides.os, "replace", killed)
        train(tmp_path / "tokenizer", joint=False)
    assert not (tmp_path / "tokenizer").exists()
    train(tmp_path / "tokenizer")
    assert names(tmp_path) == ["tokenizer"]
    assert names(tmp_path / "tokenizer") == ["joint.model", "sides.json"]


def test_stored_tokenizers_are_never_replaced(directory):
    before = (directory / "joint.model").read_bytes()
    with pytest.raises(OSError):
        train(directory, joint=False)
    assert names(directory) == ["joint.model", "sides.json"]
    assert (directory / "joint.model").read_bytes() == before


@pytest.mark.parametrize("name", ["joint.model", "sides.json"])
def test_missing_file_is_named(directory, name):
    (directory / name).unlink()
    with pytest.raises(UserError, match=rf"{name}: the tokenizer cannot be read"):
        load_tokenizers(directory)


@pytest.mark.parametrize("name", ["joint.model", "sides.json"])
@pytest.mark.parametrize(
    "damage", [lambda _: b"", lambda b: b[: len(b) // 2], lambda b: b + b"\xff"]
)
def test_damaged_file_is_named(directory, name, damage):
    (directory / name).write_bytes(damage((directory / name).read_bytes()))
    with pytest.raises(UserError, match=rf"{name}: the tokenizer is damaged"):
        load_tokenizers(directory)


def test_a_single_flipped_bit_is_damage(directory):
    model = bytearray((directory / "joint.model").read_bytes())
    model[len(model) // 2] ^= 1
    (directory / "joint.model").write_bytes(model)
    with pytest.raises(UserError, match="joint.model: the tokenizer is damaged"):
        load_tokenizers(directory)


@pytest.mark.parametrize("content", ["[]", '{"source": "joint.model"}', '{"source": {}}'])
def test_manifest_of_another_shape_is_damage(directory, content):
    (directory / "sides.json").write_text(content)
    with pytest.raises(UserError, match="sides.json: the tokenizer is damaged"):
        load_tokenizers(directory)


def test_empty_model_is_refused_even_when_its_checksum_fits(directory):
    manifest = json.loads((directory / "sides.json").read_text())
    manifest["source"]["sha256"] = (
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # of no bytes
    )
    (directory / "sides.json").write_text(json.dumps({"source": manifest["source"]}))
    (directory / "joint.model").write_bytes(b"")
    with pytest.raises(UserError, match="joint.model: the tokenizer model is empty"):
        load_tokenizers(directory)
