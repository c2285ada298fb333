# SPDX-License-Identifier: Apache-2.0
"""Vocabularies of kind "file" in a run: sized before any text is read, stored, copied."""

import pytest

from transformer_jax.errors import UserError
from transformer_jax.tokenization import (
    TokenizerConfig,
    copy_tokenizers,
    expected_sizes,
    import_tokenizer,
    store_tokenizers,
    train_tokenizers,
)

PAIR = {"source": ["the dog"], "target": ["the man"]}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_sides_share_a_vocabulary_if_their_files_are_equal(folder_of, tmp_path):
    same = TokenizerConfig("file", path=str(folder_of("t5")))
    joint = train_tokenizers(same, PAIR, tmp_path / "joint")
    assert joint["source"] is joint["target"] and joint.joint
    assert names(tmp_path / "joint") == ["joint.file.json", "sides.json"]
    apart = TokenizerConfig("file", path=str(folder_of("marian_apart")))
    found = train_tokenizers(apart, PAIR, tmp_path / "apart", {"label": ["b", "a"]})
    assert names(tmp_path / "apart")[1:] == ["sides.json", "source.file.json", "target.file.json"]
    for config, trained in ((same, joint), (apart, found)):
        sizes = {side: trained.text(side).vocab_size for side in PAIR}
        assert expected_sizes(config, PAIR) == sizes
    copied = copy_tokenizers(tmp_path / "apart", tmp_path / "copied", {"label": ["c"]})
    assert copied.labels("label").names == ("c",)
    assert copied.text("target").encode("the man") == found.text("target").encode("the man")
    assert copied.sha256["source"] == found.sha256["source"]


def test_an_importer_stores_each_side_with_ids_of_its_own(folder_of, tmp_path):
    contents = {
        "source": import_tokenizer(folder_of("roberta"), "source", {"tail": (2, 7)}, rows=400),
        "target": import_tokenizer(
            folder_of("roberta"), "target", {"start": 2, "head": (8,)}, rows=400
        ),
    }
    found = store_tokenizers("file", contents, tmp_path / "tokenizer")
    assert found.specials("source").translation.around([9]) == [0, 9, 2, 7]
    target = found.specials("target")
    assert (target.start, target.translation.around([9])) == (2, [8, 9, 2])
    assert found.text("source").vocab_size == found.text("target").vocab_size == 400


def test_a_damaged_stored_vocabulary_is_reported_in_one_line(folder_of, tmp_path):
    config = TokenizerConfig("file", path=str(folder_of("bert")))
    train_tokenizers(config, {"text": ["a"]}, tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "text.file.json").write_text("{}")
    with pytest.raises(UserError, match="text.file.json: the tokenizer is damaged; restore"):
        copy_tokenizers(tmp_path / "tokenizer", tmp_path / "other")


def test_kind_file_requires_a_path_and_other_kinds_refuse_one():
    with pytest.raises(ValueError, match="kind file needs an existing vocabulary; set path to its"):
        TokenizerConfig("file")
