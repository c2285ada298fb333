# SPDX-License-Identifier: Apache-2.0
"""Storing, loading and copying the tokenizers of a run; damaged files are named in one line."""

import hashlib
import json
import os
import pickle

import pytest

from transformer_jax.errors import UserError
from transformer_jax.tokenization import (
    HuggingFaceTokenizer,
    Labels,
    SymbolTokenizer,
    TokenizerConfig,
    copy_tokenizers,
    load_tokenizers,
    train_tokenizers,
    vocabularies,
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


def test_a_joint_vocabulary_is_one_object_for_both_languages(directory):
    tokenizers = load_tokenizers(directory)
    assert names(directory) == ["joint.model", "sides.json"]
    assert tokenizers.joint
    assert tokenizers["source"] is tokenizers["target"]
    assert tokenizers["source"].count_unknown(tokenizers["source"].encode("the old Mann")) == 0


def test_separate_vocabularies_cover_their_own_language(tmp_path):
    train(tmp_path / "tokenizer", joint=False)
    tokenizers = load_tokenizers(tmp_path / "tokenizer")
    assert names(tmp_path / "tokenizer") == ["sides.json", "source.model", "target.model"]
    assert not tokenizers.joint
    assert tokenizers["source"].count_unknown(tokenizers["source"].encode("dog")) == 0
    assert tokenizers["target"].count_unknown(tokenizers["target"].encode("dog")) == 1  # "g"


def test_a_single_side_has_one_file_of_its_name(tmp_path):
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


def test_a_run_killed_while_storing_leaves_no_folder(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(vocabularies.os, "replace", killed)
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
    "damage", [lambda _: b"", lambda b: b[: len(b) // 2], lambda b: bytes([b[0] ^ 1]) + b[1:]]
)
def test_damaged_file_is_named(directory, name, damage):
    (directory / name).write_bytes(damage((directory / name).read_bytes()))
    with pytest.raises(UserError, match=rf"{name}: the tokenizer is damaged"):
        load_tokenizers(directory)


@pytest.mark.parametrize("content", ["[]", '{"source": "joint.model"}', '{"source": {}}'])
def test_manifest_of_another_shape_is_damage(directory, content):
    (directory / "sides.json").write_text(content)
    with pytest.raises(UserError, match="sides.json: the tokenizer is damaged"):
        load_tokenizers(directory)


def refit(directory, name, content):
    """Replaces the content of a file, and its SHA-256 in the manifest."""
    manifest = json.loads((directory / "sides.json").read_text())
    for entry in manifest.values():
        if entry["file"] == name:
            entry["sha256"] = hashlib.sha256(content).hexdigest()
    (directory / "sides.json").write_text(json.dumps(manifest))
    (directory / name).write_bytes(content)


@pytest.mark.parametrize(
    "name",
    ["../joint.model", "/dev/zero", "..", ".", "", "sides.json", "joint.pickle", "a\0.json", 3],
)
def test_a_manifest_cannot_name_other_files(directory, name):
    content = {"source": {"file": name, "sha256": "0" * 64}}
    (directory / "sides.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="sides.json: the tokenizer is damaged"):
        load_tokenizers(directory)


@pytest.mark.parametrize("name", ["joint.model", "sides.json"])
def test_a_pipe_is_not_read(directory, name):
    (directory / name).unlink()
    os.mkfifo(directory / name)  # reading it would block forever
    with pytest.raises(UserError, match=rf"{name}: the tokenizer cannot be read .it is not"):
        load_tokenizers(directory)


def classes(directory, kind="wordpiece", vocab_size=60, labels=("pos", "neg", "pos")):
    config = TokenizerConfig(kind, vocab_size)
    texts = {"text": ["a good old dog", "a good man"]}
    return train_tokenizers(config, texts, directory, {"label": labels})


@pytest.mark.parametrize(
    ("kind", "size", "file"), [("char", 60, "text.model"), ("byte_bpe", 270, "text.json")]
)
def test_labels_are_stored_with_the_tokenizer_of_the_text(tmp_path, kind, size, file):
    trained = classes(tmp_path / "tokenizer", kind, size)
    assert names(tmp_path / "tokenizer") == sorted(["label.labels.json", "sides.json", file])
    loaded = pickle.loads(pickle.dumps(load_tokenizers(tmp_path / "tokenizer")))
    assert loaded["label"] == trained["label"] == Labels(("neg", "pos"))
    assert loaded["text"].encode("good dog") == trained["text"].encode("good dog")
    assert loaded.joint


def test_labels_that_look_alike_are_told(tmp_path, caplog):
    classes(tmp_path / "tokenizer", labels=["pos", "neg", "pos "])
    assert caplog.messages == ["labels that differ only in white space: ['pos', 'pos ']"]


def test_labels_do_not_change_whether_a_vocabulary_is_joint(tmp_path):
    config = TokenizerConfig("byte_bpe", 270)
    joint = train_tokenizers(config, TEXTS, tmp_path / "joint", {"label": ["a"]})
    assert joint.joint and isinstance(joint["source"], HuggingFaceTokenizer)
    assert names(tmp_path / "joint") == ["joint.json", "label.labels.json", "sides.json"]
    config = TokenizerConfig("byte_bpe", 270, joint=False)
    assert not train_tokenizers(config, TEXTS, tmp_path / "two", {"label": ["a"]}).joint


def test_a_side_without_labels_or_with_labels_and_text_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no labels to learn for side 'label'"):
        classes(tmp_path / "tokenizer", labels=[])
    with pytest.raises(ValueError, match="'source' there are both"):
        train_tokenizers(
            TokenizerConfig("char", 50), TEXTS, tmp_path / "tokenizer", {"source": ["a"]}
        )
    assert not (tmp_path / "tokenizer").exists()


def test_a_copy_has_the_same_files(tmp_path):
    classes(tmp_path / "tokenizer")
    copied = copy_tokenizers(tmp_path / "tokenizer", tmp_path / "copy")
    assert copied["label"].names == ("neg", "pos")
    for name in names(tmp_path / "tokenizer"):
        original = (tmp_path / "tokenizer" / name).read_bytes()
        assert (tmp_path / "copy" / name).read_bytes() == original


@pytest.mark.parametrize(
    ("labels", "sides_left"), [({}, {"text"}), ({"tag": ["O"]}, {"text", "tag"})]
)
def test_new_labels_of_a_copy_replace_the_old_ones(tmp_path, labels, sides_left):
    trained = classes(tmp_path / "tokenizer")
    copied = copy_tokenizers(tmp_path / "tokenizer", tmp_path / "copy", labels)
    assert set(copied.sides) == {"text", *labels}
    assert [copied[side].names for side in labels] == [tuple(found) for found in labels.values()]
    assert copied["text"].encode("old man") == trained["text"].encode("old man")
    files = ["sides.json", "text.json"] + [f"{side}.labels.json" for side in labels]
    assert names(tmp_path / "copy") == sorted(files)


def test_damage_is_not_copied(tmp_path):
    classes(tmp_path / "tokenizer")
    refit(tmp_path / "tokenizer", "text.json", b"{}")
    with pytest.raises(UserError, match="tokenizer/text.json: the tokenizer is damaged"):
        copy_tokenizers(tmp_path / "tokenizer", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("name", ["text.json", "label.labels.json"])
def test_damage_is_reported_in_one_line_for_every_kind_of_file(tmp_path, name):
    directory = tmp_path / "tokenizer"
    classes(directory)
    whole = (directory / name).read_bytes()
    (directory / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"{name}: the tokenizer is damaged"):
        load_tokenizers(directory)
    refit(directory, name, whole[: len(whole) // 2])  # with the digest of the damaged file
    with pytest.raises(UserError, match=f"{name}: the tokenizer is damaged"):
        load_tokenizers(directory)
    (directory / name).unlink()
    with pytest.raises(UserError, match=f"{name}: the tokenizer cannot be read"):
        load_tokenizers(directory)


def test_a_copy_keeps_symbols_and_gives_a_missing_side_its_only_text_vocabulary(tmp_path):
    old, new = {"target": SymbolTokenizer(["(A", ")"])}, {"target": SymbolTokenizer(["(B", ")"])}
    config = TokenizerConfig("char", 50)
    train_tokenizers(config, {"source": ["ab"]}, tmp_path / "parser", old)
    copied = copy_tokenizers(tmp_path / "parser", tmp_path / "again", new, ["source"])
    assert copied.text("target").encode("(A (B") == [4, 1]
    text = train_tokenizers(config, {"text": ["ab"]}, tmp_path / "text")
    copied = copy_tokenizers(tmp_path / "text", tmp_path / "new", new, ["source"])
    assert copied.text("target").encode("(A (B") == [1, 4]
    assert copied.text("source").encode("ab") == text.text("text").encode("ab")
