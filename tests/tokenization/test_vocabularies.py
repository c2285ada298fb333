# SPDX-License-Identifier: Apache-2.0
"""Storing, loading and copying the tokenizers of a run; damaged files are named in one line."""

import hashlib
import json
import os
import pickle
import shutil
from functools import partial

import pytest

from transformer_jax.errors import UserError
from transformer_jax.tokenization import (
    Labels,
    SymbolTokenizer,
    TokenizerConfig,
    copy_tokenizers,
    load_tokenizers,
    train_tokenizers,
    vocabularies,
)
from transformer_jax.tokenization.huggingface import HuggingFaceTokenizer

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
    assert (list(tokenizers), "text" in tokenizers) == (["source", "target"], False)
    with pytest.raises(UserError, match="there is no tokenizer 'text'; there are: source, target"):
        tokenizers["text"]


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


def classes(directory, kind="wordpiece", vocab_size=60, labels=("pos", "neg", "pos")):
    config = TokenizerConfig(kind, vocab_size)
    texts = {"text": ["a good old dog", "a good man"]}
    return train_tokenizers(config, texts, directory, {"label": labels})


FILES = ("text.json", "label.labels.json", "sides.json")
NOT_FILES = ["../joint.model", "/dev/zero", "", "sides.json", "joint.pickle", 3]


def test_files_that_are_missing_or_damaged_are_named(tmp_path, assert_refused):
    classes(tmp_path / "whole")
    table = {}

    def add(case, name, words, content=None, fits=False):
        """The file has this content, or is a pipe; with its digest in the manifest if it `fits`."""
        folder = shutil.copytree(tmp_path / "whole", tmp_path / str(len(table)))
        (folder / name).unlink()
        if content is None:
            os.mkfifo(folder / name)  # reading it would block forever
        else:
            (folder / name).write_bytes(content)
        if fits:
            manifest = json.loads((folder / "sides.json").read_text())
            entry = next(entry for entry in manifest.values() if entry["file"] == name)
            entry["sha256"] = hashlib.sha256(content).hexdigest()
            (folder / "sides.json").write_text(json.dumps(manifest))
        words = f"{name}: the tokenizer {words}"
        table[f"{name} {case}"] = partial(load_tokenizers, folder), words
        copy = partial(copy_tokenizers, folder, tmp_path / "copy")
        table[f"{name} {case}, copied"] = copy, words

    for name in FILES:
        whole = (tmp_path / "whole" / name).read_bytes()
        add("a pipe", name, "cannot be read (it is not")
        add("empty", name, "is damaged", b"")
        add("cut", name, "is damaged", whole[: len(whole) // 2])
        add("changed", name, "is damaged", bytes([whole[0] ^ 1]) + whole[1:])
        if name != "sides.json":
            add("cut and named", name, "is damaged", whole[: len(whole) // 2], fits=True)
    for content in ([], {"source": "joint.model"}, {"source": {}}):
        add(str(content), "sides.json", "is damaged", json.dumps(content).encode())
    for name in NOT_FILES:
        content = {"source": {"file": name, "sha256": "0" * 64}}
        add(f"names {name!r}", "sides.json", "is damaged", json.dumps(content).encode())
    empty = tmp_path / "empty"
    table["missing"] = partial(load_tokenizers, empty), "sides.json: the tokenizer cannot be read"
    assert_refused(table)
    assert not (tmp_path / "copy").exists()


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
