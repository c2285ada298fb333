# SPDX-License-Identifier: Apache-2.0
"""Formats of conversations in data sets, and objects that are rejected."""

from functools import partial

import pytest

from tests.refusals import assert_refused
from transformer_jax.conversations.turns import (
    Turn,
    check_answered,
    check_unanswered,
    conversation_from_json,
    conversation_to_json,
    parse_conversation,
    parse_request,
)


def messages(*turns):
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def test_all_formats_give_the_same_turns():
    turns = (Turn("system", "s"), Turn("user", "a"), Turn("assistant", "b"))
    assert parse_conversation(messages(*turns)) == turns
    shared = [("system", "s"), ("human", "a"), ("gpt", "b")]
    found = {"conversations": [{"from": role, "value": content} for role, content in shared]}
    assert parse_conversation(found) == turns
    instruction = {"instruction": "a", "input": "i", "output": "b"}
    assert parse_conversation(instruction) == (Turn("user", "a"), Turn("input", "i"), turns[2])
    assert parse_conversation({"instruction": "a", "input": ""}) == (Turn("user", "a"),)
    assert conversation_from_json(conversation_to_json(turns)) == turns


def test_the_last_turn_is_checked():
    asked, answered = (Turn("user", "a"),), (Turn("user", "a"), Turn("assistant", "b"))
    check_unanswered(asked)
    check_answered(answered)
    empty = (*asked, Turn("assistant", " \n"))
    assert_refused({"the last turn is not the user's": lambda: check_unanswered(answered)})
    assert_refused({"the last turn is no answer": lambda: check_answered(asked)})
    assert_refused({"turn 2 is an empty answer": lambda: check_answered(empty)})


def test_a_line_is_an_instruction_or_an_object():
    assert parse_request("Add.") == (Turn("user", "Add."),)
    assert parse_request('{"a": 1} is what?') == (Turn("user", '{"a": 1} is what?'),)
    assert parse_request('{"a": 1}') == (Turn("user", '{"a": 1}'),)
    deep = '{"messages":' + "[" * 100_000
    assert parse_request(deep) == (Turn("user", deep),)
    assert parse_request('{"instruction": "Add."}') == (Turn("user", "Add."),)
    line = '{"messages": [{"role": "x", "content": "a"}]}'
    assert_refused({"unknown role": lambda: parse_request(line)})


def test_every_key_of_a_row_is_read():
    found = {"instruction": "c", "input": "", "output": "d", "system": "s"}
    turns = (("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    assert parse_conversation({**found, "history": [["a", "b"]]}) == turns
    shared = {"conversations": [{"from": "human", "value": "a"}], "system": "s"}
    assert parse_conversation(shared) == turns[:2]
    assert parse_conversation({**shared, "prompt": "a", "prompt_id": "x"}) == turns[:2]
    parts = [{"type": "text", "text": "a"}]
    assert parse_conversation({"messages": [{"role": "user", "content": parts}]}) == turns[1:2]


def test_keys_that_say_nothing_about_a_conversation_are_ignored():
    ignored = dict.fromkeys(["id", "source", "score_chosen", "meta"], 3)
    ignored |= {"tools": [], "name": "", "functions": None}
    assert parse_conversation(messages(("user", "a")) | ignored) == (("user", "a"),)


MESSAGE = {"role": "user", "content": "a"}


REFUSED = [
    ([], "write {"),
    ({"instruction": 3}, "write {"),
    ({"instruction": "a", "output": 3}, '"output" is no text'),
    ({"messages": []}, '"messages" is not a list of turns'),
    ({"messages": "hello"}, '"messages" is not a list of turns'),
    ({"messages": [{"role": "user"}]}, 'turn 1: no text "content"'),
    (messages(("tool", "a")), "turn 1: unknown role 'tool'; known: system, user"),
    (messages(("assistant", "a")), "turn 1, of role assistant, comes first"),
    (messages(("user", "a"), ("user", "b")), "turn 2, of role user, follows one of role user"),
    (messages(("user", "a"), ("system", "b")), "turn 2, of role system, follows"),
    (messages(("user", " ")), "turn 1 is an empty question"),
    ({"instruction": "a", "tools": "[]"}, "the key 'tools' is not read"),
    ({"conversations": [{"from": "human", "value": "a"}], "tools": ["f"]}, "key 'tools' is"),
    ({"messages": [MESSAGE], "output": "b"}, "the key 'output' is not read"),
    ({"messages": [MESSAGE | {"name": "Ann"}]}, "turn 1: the key 'name' is not read"),
    ({"messages": [MESSAGE | {"weight": 1}]}, "turn 1: 'weight' is 1: an answer is learned"),
    ({"messages": [MESSAGE | {"train": "no"}]}, "turn 1: 'train' is no: an answer"),
    ({"messages": [MESSAGE | {"content": [{"type": "image"}]}]}, "neither a text nor one"),
    ({"messages": [MESSAGE], "prompt": "b"}, '"prompt" is not the first question'),
    ({"messages": [MESSAGE], "system": 3}, '"system" is no text'),
    ({"instruction": "a", "history": [["b"]]}, '"history" is not a list of [question, answer]'),
]


def test_invalid_rows_are_refused_with_the_reason():
    for row, words in REFUSED:
        assert_refused({words: partial(parse_conversation, row)})


@pytest.mark.parametrize("flag", [{"weight": 0}, {"train": False}, {"loss": False}])
def test_an_answer_may_be_given_and_not_learned(flag):
    given = {"role": "assistant", "content": "b", **flag}
    learned = {"role": "assistant", "content": "d", "weight": 1}
    turns = parse_conversation({"messages": [MESSAGE, given, MESSAGE | {"content": "c"}, learned]})
    again = conversation_from_json(conversation_to_json(turns))
    assert [turn.content for turn in again if turn.is_learned] == ["d"]
    assert again == turns
    check_answered(turns)
    assert_refused({"no answer is learned": lambda: check_answered(turns[:2])})
