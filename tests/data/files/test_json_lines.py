"""Files of multiple choice, and lines that are none."""

import json
import re

import pytest

from transformer_jax.conversations import conversation_from_json
from transformer_jax.data.files.json_lines import (
    continuation,
    question_of,
    read_choices,
    read_preferences,
)
from transformer_jax.errors import UserError

ROW = {"context": "The dog", "choices": ["walks.", "is a cat."], "answer": 0}


def test_examples_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps({**ROW, "answer": 1, "id": 3}))
    first, second = read_choices(str(path))
    assert first == {
        "context": "The dog",
        "choices": '["walks.", "is a cat."]',
        "answer": "0",
        "text": "The dog walks.",
    }
    assert second["text"] == "The dog is a cat."
    assert question_of('{"context": "", "choices": ["a", "b"]}') == ("", ["a", "b"])


def test_one_space_stands_before_a_choice():
    pairs = [("a", "b"), ("a ", "b"), ("a", " b"), ("", "b")]
    assert [context + continuation(context, choice) for context, choice in pairs] == [
        "a b",
        "a b",
        "a b",
        "b",
    ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"answer": 2}, '"answer" is 2; write 0 to 1'),
        ({"answer": True}, '"answer" is True'),
        ({"answer": "a"}, "\"answer\" is 'a'"),
        ({"choices": ["a"]}, '"choices" are not two texts or more'),
        ({"choices": ["a", ""]}, '"choices" are not two texts or more'),
        ({"choices": "ab"}, 'write {"context": text'),
        ({"context": None}, 'write {"context": text'),
        (None, "this is no JSON"),
    ],
)
def test_the_first_bad_line_is_named(tmp_path, changes, told):
    bad = "{" if changes is None else json.dumps(ROW | changes)
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(ROW)}\n{bad}\n")
    with pytest.raises(UserError) as error:
        read_choices(str(tmp_path / "a.jsonl"))
    assert f"a.jsonl, line 2: {told}" in str(error.value)


# FOLDED tests/data/files/test_json_lines.py: Files of preferences: the forms that they have, and
# what is refused or left out.


ASKED = [{"role": "user", "content": "Hello?"}]
GOOD, BAD = [{"role": "assistant", "content": "good"}], [{"role": "assistant", "content": "bad"}]


@pytest.fixture
def read(tmp_path):
    def read(*objects, split="valid"):
        path = tmp_path / "pairs.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in objects))
        return read_preferences(str(path), split)

    return read


@pytest.mark.parametrize(
    "found",
    [
        {"prompt": "Hello?", "chosen": "good", "rejected": "bad"},
        {"prompt": ASKED, "chosen": GOOD, "rejected": BAD},
        {"chosen": ASKED + GOOD, "rejected": ASKED + BAD},
        {"instruction": "Hello?", "output": "other", "chosen": "good", "rejected": "bad"},
        {"messages": ASKED, "chosen": "good", "rejected": BAD},
    ],
)
def test_all_forms_say_the_same(read, found):
    (example,) = read(found)
    assert conversation_from_json(example["turns"]) == (("user", "Hello?"),)
    assert (example["chosen"], example["rejected"]) == ("good", "bad")
    assert example["text"] == "Hello?\ngood\nbad"


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"prompt": "Hello?", "chosen": "good"}, 'line 2: write {"prompt": text or messages'),
        (["Hello?"], "line 2: write"),
        ({"chosen": "good", "rejected": "bad"}, "line 2: write"),
        ({"prompt": ASKED + GOOD, "chosen": "a", "rejected": "b"}, "line 2: the last turn is none"),
        ({"prompt": GOOD, "chosen": "a", "rejected": "b"}, 'line 2: "prompt": turn 1, of role ass'),
        (
            {"prompt": "Hello?", "chosen": ASKED, "rejected": "b"},
            "is a turn of role 'user'",
        ),
        ({"prompt": "Hello?", "chosen": 1, "rejected": "b"}, '"chosen" is neither a text nor one'),
        ({"chosen": ASKED + GOOD, "rejected": GOOD}, '"rejected": turn 1, of role assistant, com'),
        (
            {"chosen": ASKED + GOOD, "rejected": [{"role": "user", "content": "No?"}, *BAD]},
            'line 2: "chosen" and "rejected" differ before their last turns',
        ),
        (
            {"prompt": "Hello?", "chosen": "same", "rejected": "same"},
            "line 2: both answers are",
        ),
        ({"prompt": "Hello?", "chosen": " ", "rejected": "b"}, 'line 2: "chosen" is an empty answ'),
    ],
)
def test_what_is_none_is_refused_by_file_and_line(read, found, told):
    with pytest.raises(UserError, match=re.escape(told)) as caught:
        read({"prompt": "Hello?", "chosen": "good", "rejected": "bad"}, found)
    assert "\n" not in str(caught.value)


def test_training_leaves_out_what_teaches_nothing(read, caplog):
    pair = {"prompt": "Hello?", "chosen": "good", "rejected": "bad"}
    found = read({**pair, "chosen": "bad"}, pair, {**pair, "rejected": ""}, split="train")
    assert len(found) == 1
    assert "left out 2 of 3 lines" in caplog.text and "line 1: both answers are" in caplog.text
    with pytest.raises(UserError, match="has no line to learn from"):
        read({**pair, "chosen": "bad"}, split="train")
