# SPDX-License-Identifier: Apache-2.0
"""Tuning to instructions: what is asked, and the pairs of answers that are compared."""

import json
from types import SimpleNamespace

from experiments import instructions
from transformer_jax.conversations import conversation_to_json, parse_conversation


def example(question, answer, *more):
    said = [question, answer, *more]
    roles = ["user", "assistant"] * len(said)
    turns = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    return {"turns": conversation_to_json(parse_conversation({"messages": turns}))}


EXAMPLES = [
    example("Name a colour.", "Red."),
    example("Sum up:\nmany words", "Words."),
    example("Hello", "Hello.", "And now?", "Bye."),
    example("Name a dog.", "Bello."),
    example("Name a cat.", "Minka."),
]
ASKED = ["Name a colour.", "Name a dog.", "Name a cat."]


def test_questions_are_of_one_line_and_answered_at_once():
    found = instructions.instructions(EXAMPLES, 10)
    assert found == list(zip(ASKED, ["Red.", "Bello.", "Minka."], strict=True))
    assert instructions.instructions(EXAMPLES, 2) == found[:2]


def test_pairs_are_of_answers_that_differ_and_written_once(tmp_path, monkeypatch):
    monkeypatch.setattr(instructions, "open_split", lambda data, split: EXAMPLES)
    asked = []

    def predict(questions, **options):
        asked.append(questions)
        return ["Blue.", "Bello.", " "]

    run = SimpleNamespace(settings=SimpleNamespace(data=None), predict=predict)
    files = instructions.pairs_of(run, tmp_path)
    expected = {"prompt": "Name a colour.", "chosen": "Red.", "rejected": "Blue."}
    for split in ("train", "valid", "test"):
        assert [json.loads(line) for line in files[split].open()] == [expected]
    assert asked == [ASKED] * 3
    assert instructions.pairs_of(run, tmp_path) == files
    assert len(asked) == 3
