# SPDX-License-Identifier: Apache-2.0
"""Tiny Shakespeare, WikiText-2, books of Project Gutenberg, and Alpaca."""

import json

import pytest

from tests.data.writing import write
from transformer_jax.conversations import conversation_from_json
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sets.text_sets import HELD_OUT_BOOKS
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError


def texts(name, folder, split) -> list[str]:
    examples = open_split(DataConfig(name=name, dir=str(folder)), split)
    return [example["text"] for example in examples]


def test_training_has_nine_tenths_of_tiny_shakespeare(tmp_path):
    text = "".join(f"é{n}\n" for n in range(33))  # characters, not bytes, are counted
    write(tmp_path / "input.txt.gz", text)
    (train,) = texts("tiny_shakespeare", tmp_path, "train")
    (valid,) = texts("tiny_shakespeare", tmp_path, "valid")
    assert len(train) == int(0.9 * len(text)) and train + valid == text
    assert texts("tiny_shakespeare", tmp_path, "test") == [valid]


def test_a_split_of_wikitext2_is_one_document(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"wiki.{split}.tokens").write_text(f" \n = {split} = \n \n <unk> . \n")
        assert texts("wikitext2", tmp_path, split) == [f" \n = {split} = \n \n <unk> . \n"]


@pytest.fixture
def books(tmp_path):
    for name in ("carroll-alice.txt", "unknown.txt", "README.md", *HELD_OUT_BOOKS.values()):
        file = name if "." in name else f"{name}.txt"
        (tmp_path / file).write_text(f"[{name}]\n\nText.\n")
    write(tmp_path / "unknown.txt.gz", "Not read: it is there as plain text.\n")
    write(tmp_path / "blake-poems.txt.gz", "Poems.\n")
    return tmp_path


def test_each_book_is_a_document_and_two_are_held_out(books):
    assert texts("gutenberg", books, "train") == [
        "Poems.\n",
        "[carroll-alice.txt]\n\nText.\n",
        "[unknown.txt]\n\nText.\n",
    ]
    assert texts("gutenberg", books, "valid") == ["[chesterton-thursday]\n\nText.\n"]
    assert texts("gutenberg", books, "test") == ["[austen-persuasion]\n\nText.\n"]


def test_a_missing_book_is_named(books):
    (books / "austen-persuasion.txt").unlink()
    for split in ("train", "test"):
        with pytest.raises(UserError, match="neither austen-persuasion.txt nor .*gutenberg.org"):
            texts("gutenberg", books, split)


def test_held_out_books_alone_are_an_error(books):
    for name in ("carroll-alice.txt", "unknown.txt", "unknown.txt.gz", "blake-poems.txt.gz"):
        (books / name).unlink()
    with pytest.raises(UserError, match="no book to train on"):
        texts("gutenberg", books, "train")


@pytest.mark.parametrize("name", ["alpaca_data.jsonl.gz", "alpaca_data.json"])
def test_splits_of_alpaca_do_not_overlap(tmp_path, name):
    rows = [{"instruction": f"i{n}", "input": "", "output": f"o{n}"} for n in range(120)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    is_array = name.endswith(".json")  # as the authors of the set write it
    write(tmp_path / name, json.dumps(rows, indent=4) if is_array else lines)
    config = DataConfig(name="alpaca", dir=str(tmp_path))
    parts = {
        split: [
            conversation_from_json(one["turns"])[0].content for one in open_split(config, split)
        ]
        for split in ("train", "valid", "test")
    }
    assert parts["valid"] == ["i0", "i50", "i100"] and parts["test"] == ["i1", "i51", "i101"]
    assert sorted(sum(parts.values(), [])) == sorted(row["instruction"] for row in rows)
    assert len(parts["train"]) == 114
