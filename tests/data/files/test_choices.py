"""Files of multiple choice, and lines that are none."""

import json

import pytest

from transformer_jax.data.files.choices import continuation, question_of, read_choices
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
