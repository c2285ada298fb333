# SPDX-License-Identifier: Apache-2.0
"""Formats of conversations in data sets, and objects that are rejected."""

import re

import pytest

from transformer_jax.conversations import (
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
    with pytest.raises(ValueError, match="the last turn is not the user's"):
        check_unanswered(answered)
    with pytest.raises(ValueError, match="the last turn is no answer"):
        check_answered(asked)
    with pytest.raises(ValueError, match="turn 2 is an empty answer"):
        check_answered((Turn("user", "a"), Turn("assistant", " \n")))


def test_a_line_is_an_instruction_or_an_object():
    assert parse_request("Add.") == (Turn("user", "Add."),)
    assert parse_request('{"a": 1} is what?') == (Turn("user", '{"a": 1} is what?'),)
    assert parse_request('{"a": 1}') == (Turn("user", '{"a": 1}'),)
    assert parse_request('{"instruction": "Add."}') == (Turn("user", "Add."),)
    with pytest.raises(ValueError, match="unknown role"):
        parse_request('{"messages": [{"role": "x", "content": "a"}]}')


def test_every_key_of_a_row_is_read():
    found = {"instruction": "c", "input": "", "output": "d", "system": "s"}
    turns = (("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    assert parse_conversation({**found, "history": [["a", "b"]]}) == turns
    shared = {"conversations": [{"from": "human", "value": "a"}], "system": "s"}
    assert parse_conversation(shared) == turns[:2]
    assert parse_conversation({**shared, "prompt": "a", "prompt_id": "x"}) == turns[:2]
    parts = [{"type": "text", "text": "a"}]
    assert parse_conversation({"messages": [{"role": "user", "content": parts}]}) == turns[1:2]


@pytest.mark.parametrize("ignored", ["id", "source", "score_chosen", "meta"])
def test_keys_that_say_nothing_about_a_conversation_are_ignored(ignored):
    found = {**messages(("user", "a")), ignored: 3, "tools": [], "name": "", "functions": None}
    assert parse_conversation(found) == (("user", "a"),)


MESSAGE = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([], "write {"),
        ({"text": "a"}, "write {"),
        ({"instruction": 3}, "write {"),
        ({"instruction": "a", "output": 3}, '"output" is no text'),
        ({"messages": []}, '"messages" is not a list of turns'),
        ({"messages": "hello"}, '"messages" is not a list of turns'),
        ({"messages": [{"role": "user"}]}, 'turn 1 has no text "content"'),
        (messages(("tool", "a")), "turn 1: unknown role 'tool'; known: system, user"),
        (messages(("assistant", "a")), "turn 1, of role assistant, comes first"),
        (messages(("user", "a"), ("user", "b")), "turn 2, of role user, follows one of role user"),
        (messages(("user", "a"), ("system", "b")), "turn 2, of role system, follows"),
        (messages(("user", " ")), "turn 1 is an empty question"),
        ({"instruction": "a", "tools": "[]"}, "the key 'tools' is not read"),
        ({"conversations": [{"from": "human", "value": "a"}], "tools": ["f"]}, "key 'tools' is"),
        ({"messages": [MESSAGE], "output": "b"}, "the key 'output' is not read"),
        ({"messages": [{**MESSAGE, "name": "Ann"}]}, "turn 1: the key 'name' is not read"),
        ({"messages": [{**MESSAGE, "tool_calls": [1]}]}, "turn 1: the key 'tool_calls' is not"),
        ({"messages": [{**MESSAGE, "weight": 1}]}, "turn 1: 'weight' is 1: an answer is learned"),
        ({"messages": [{**MESSAGE, "train": "no"}]}, "turn 1: 'train' is no: an answer"),
        ({"messages": [{**MESSAGE, "content": [{"type": "image"}]}]}, "neither a text nor one"),
        ({"messages": [MESSAGE], "prompt": "b"}, '"prompt" is not the first question'),
        ({"instruction": "a", "history": "b"}, '"history" is not a list of [question, answer]'),
        ({"messages": [MESSAGE], "system": 3}, '"system" is no text'),
        ({"instruction": "a", "history": [["b"]]}, '"history" is not a list of [question, answer]'),
        ({"messages": [{"role": "system", "content": "a"}], "system": "b"}, "follows one of role"),
    ],
)
def test_an_invalid_row_is_refused_with_the_reason(row, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_conversation(row)


@pytest.mark.parametrize("flag", [{"weight": 0}, {"train": False}, {"loss": False}])
def test_an_answer_may_be_given_and_not_learned(flag):
    given = {"role": "assistant", "content": "b", **flag}
    learned = {"role": "assistant", "content": "d", "weight": 1}
    found = parse_conversation({"messages": [MESSAGE, given, {**MESSAGE, "content": "c"}, learned]})
    again = conversation_from_json(conversation_to_json(found))
    assert [turn.content for turn in again if turn.is_learned] == ["d"]
    assert again == found
    check_answered(found)
    with pytest.raises(ValueError, match="no answer is learned"):
        check_answered(found[:2])
