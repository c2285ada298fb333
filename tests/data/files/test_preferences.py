"""Files of preferences: the forms that they have, and what is refused or left out."""

import json
import re

import pytest

from transformer_jax.conversations import from_text
from transformer_jax.data.files.preferences import read_preferences
from transformer_jax.errors import UserError

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
    assert from_text(example["turns"]) == (("user", "Hello?"),)
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
