# SPDX-License-Identifier: Apache-2.0
"""Files with one object per example: conversations, preferences and multiple choice."""

import json
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.writing import write
from transformer_jax.conversations import conversation_from_json
from transformer_jax.data.files.json_lines import (
    choice_continuation,
    parse_question,
    read_answers,
    read_choices,
    read_conversations,
    read_preferences,
)

ROWS = [
    {"instruction": "Add.", "input": "1 2", "output": "3"},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    {"conversations": [{"from": "human", "value": "c"}, {"from": "gpt", "value": "ä"}]},
]
WANTED = [["Add.", "1 2", "3"], ["a", "b"], ["c", "ä"]]


def write_rows(path, rows):
    return write(path, "".join(f"{json.dumps(row)}\n" for row in rows))


def contents_of(corpus):
    return [
        [turn.content for turn in conversation_from_json(example["turns"])] for example in corpus
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_every_format_of_conversations_is_read(tmp_path, name):
    corpus = read_conversations(write_rows(tmp_path / name, ROWS), "valid")
    assert contents_of(corpus) == WANTED
    assert corpus[0]["text"] == "Add.\n1 2\n3"


def test_conversations_are_read_from_parquet(tmp_path):
    path = str(tmp_path / "a.parquet")
    for row, wanted in zip(ROWS, WANTED, strict=True):
        pq.write_table(pa.Table.from_pylist([row, row]), path)
        assert contents_of(read_conversations(path, "valid")) == [wanted] * 2


def test_each_answer_is_an_example_with_the_turns_before_it(tmp_path):
    turns = [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    several = {"messages": [{"role": role, "content": content} for role, content in turns]}
    corpus = read_answers(write_rows(tmp_path / "a.jsonl", [ROWS[0], several]), "valid")
    assert list(corpus) == [
        {"source": "Add.\n\n1 2", "target": "3"},
        {"source": "System: s\n\nUser: a", "target": "b"},
        {"source": "System: s\n\nUser: a\n\nAssistant: b\n\nUser: c", "target": "d"},
    ]


def test_training_skips_empty_answers(tmp_path, caplog):
    path = write_rows(tmp_path / "a.jsonl", [*ROWS, {"instruction": "a", "output": " "}])
    with caplog.at_level(logging.WARNING):
        assert contents_of(read_conversations(path, "train")) == WANTED
    why = "nothing to learn (the first: line 4: turn 2 is an empty answer)"
    assert caplog.messages == [f"left out 1 of 4 rows of {path}: {why}"]


ASKED = [{"role": "user", "content": "Hello?"}]
GOOD, BAD = [{"role": "assistant", "content": "good"}], [{"role": "assistant", "content": "bad"}]


@pytest.fixture
def read(tmp_path):
    def read(*objects, split="valid"):
        return read_preferences(write_rows(tmp_path / "pairs.jsonl", objects), split)

    return read


@pytest.mark.parametrize(
    "found",
    [
        {"prompt": "Hello?", "chosen": "good", "rejected": "bad"},
        {"prompt": ASKED, "chosen": GOOD, "rejected": BAD},
        {"chosen": ASKED + GOOD, "rejected": ASKED + BAD},
        {"instruction": "Hello?", "output": "other", "chosen": "good", "rejected": "bad"},
        {"prompt": "Hello?", "chosen": ASKED + GOOD, "rejected": ASKED + BAD, "messages": ASKED},
        {"prompt": ASKED, "chosen": ASKED + GOOD, "rejected": ASKED + BAD, "score_chosen": 8.5},
        {
            "conversations": [{"from": "human", "value": "Hello?"}],
            "chosen": {"from": "gpt", "value": "good"},
            "rejected": {"from": "gpt", "value": "bad"},
        },
        {"messages": ASKED, "chosen": "good", "rejected": BAD},
    ],
)
def test_all_formats_of_preferences_give_the_same_example(read, found):
    (example,) = read(found)
    assert conversation_from_json(example["turns"]) == (("user", "Hello?"),)
    assert (example["chosen"], example["rejected"]) == ("good", "bad")
    assert example["text"] == "Hello?\ngood\nbad"


def test_training_skips_pairs_with_nothing_to_learn(read, caplog):
    pair = {"prompt": "Hello?", "chosen": "good", "rejected": "bad"}
    found = read({**pair, "chosen": "bad"}, pair, {**pair, "rejected": ""}, split="train")
    assert len(found) == 1
    assert "left out 2 of 3 rows" in caplog.text and "line 1: both answers are" in caplog.text


CHOICE = {"context": "The dog", "choices": ["walks.", "is a cat."], "answer": 0}


def test_multiple_choice_is_read(tmp_path):
    rows = [CHOICE, CHOICE | {"answer": 1, "id": 3}]
    first, second = read_choices(write_rows(tmp_path / "a.jsonl", rows))
    assert first == {
        "context": "The dog",
        "choices": '["walks.", "is a cat."]',
        "answer": "0",
        "text": "The dog walks.",
    }
    assert second["text"] == "The dog is a cat."
    assert parse_question('{"context": "", "choices": ["a", "b"]}') == ("", ["a", "b"])


def test_a_choice_is_separated_by_one_space():
    pairs = [("a", "b"), ("a ", "b"), ("a", " b"), ("", "b")]
    texts = [context + choice_continuation(context, choice) for context, choice in pairs]
    assert texts == [*["a b"] * 3, "b"]


def test_a_system_turn_beside_the_prompt_is_read(read):
    (example,) = read({"prompt": "Hello?", "system": "s", "chosen": "good", "rejected": "bad"})
    assert conversation_from_json(example["turns"]) == (("system", "s"), ("user", "Hello?"))


def test_answers_that_are_given_are_no_examples_of_their_own(tmp_path):
    turns = [("user", "a", None), ("assistant", "b", 0), ("user", "c", None), ("assistant", "d", 1)]
    found = {"messages": [{"role": r, "content": c, "weight": w} for r, c, w in turns]}
    (example,) = read_answers(write_rows(tmp_path / "a.jsonl", [found]), "valid")
    assert example["target"] == "d" and "Assistant: b" in example["source"]


def test_a_prompt_that_both_conversations_repeat_is_read_once(read):
    before = [*ASKED, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "And?"}]
    for prompt in ("Hello?", "And?", before):
        (example,) = read({"prompt": prompt, "chosen": before + GOOD, "rejected": before + BAD})
        turns = [turn.content for turn in conversation_from_json(example["turns"])]
        assert turns == ["Hello?", "Hi.", "And?"]
