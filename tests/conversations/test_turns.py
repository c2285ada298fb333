"""The forms of conversations, and what is none."""

import pytest

from transformer_jax.conversations import (
    Turn,
    check_answered,
    check_asks,
    from_line,
    from_object,
    from_text,
    to_text,
)


def messages(*turns):
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def test_all_forms_are_turns():
    turns = (Turn("system", "s"), Turn("user", "a"), Turn("assistant", "b"))
    assert from_object(messages(*turns)) == turns
    shared = [("system", "s"), ("human", "a"), ("gpt", "b")]
    assert from_object({"conversations": [{"from": f, "value": v} for f, v in shared]}) == turns
    instruction = {"instruction": "a", "input": "i", "output": "b"}
    assert from_object(instruction) == (Turn("user", "a"), Turn("input", "i"), turns[2])
    assert from_object({"instruction": "a", "input": ""}) == (Turn("user", "a"),)
    assert from_text(to_text(turns)) == turns


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([], "write {"),
        ({"text": "a"}, "write {"),
        ({"instruction": 3}, "write {"),
        ({"instruction": "a", "output": 3}, '"output" is no text'),
        ({"messages": []}, '"messages" holds no list of turns'),
        ({"messages": "hello"}, '"messages" holds no list of turns'),
        ({"messages": [{"role": "user"}]}, 'turn 1 has no text "content"'),
        (messages(("tool", "a")), "turn 1: unknown role 'tool'; known: system, user"),
        (messages(("assistant", "a")), "turn 1, of role assistant, comes first"),
        (messages(("user", "a"), ("user", "b")), "turn 2, of role user, follows one of role user"),
        (messages(("user", "a"), ("system", "b")), "turn 2, of role system, follows"),
        (messages(("user", " ")), "turn 1 is an empty question"),
    ],
)
def test_what_is_no_conversation_says_why(found, told):
    with pytest.raises(ValueError) as error:
        from_object(found)
    assert told in str(error.value)


def test_an_answer_is_there_or_to_come():
    asked, answered = (Turn("user", "a"),), (Turn("user", "a"), Turn("assistant", "b"))
    check_asks(asked)
    check_answered(answered)
    with pytest.raises(ValueError, match="none of the user's"):
        check_asks(answered)
    with pytest.raises(ValueError, match="the last turn is no answer"):
        check_answered(asked)
    with pytest.raises(ValueError, match="turn 2 is an empty answer"):
        check_answered((Turn("user", "a"), Turn("assistant", " \n")))


def test_a_line_is_an_instruction_or_an_object():
    assert from_line("Add.") == (Turn("user", "Add."),)
    assert from_line('{"a": 1} is what?') == (Turn("user", '{"a": 1} is what?'),)
    assert from_line('{"a": 1}') == (Turn("user", '{"a": 1}'),)
    assert from_line('{"instruction": "Add."}') == (Turn("user", "Add."),)
    with pytest.raises(ValueError, match="unknown role"):
        from_line('{"messages": [{"role": "x", "content": "a"}]}')
