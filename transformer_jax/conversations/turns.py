"""Turns of a conversation, and the JSON formats of data sets."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SYSTEM, USER, INPUT, ASSISTANT = "system", "user", "input", "assistant"

_ROLES = {
    "system": SYSTEM,
    "user": USER,
    "human": USER,
    "input": INPUT,
    "assistant": ASSISTANT,
    "gpt": ASSISTANT,
}
"""Name of a role in a data set -> role here."""

_NEXT_ROLES = {
    None: (SYSTEM, USER),
    SYSTEM: (USER,),
    USER: (INPUT, ASSISTANT),
    INPUT: (ASSISTANT,),
    ASSISTANT: (USER,),
}
"""Role of a turn (None: before the first turn) -> roles of the next turn."""

_MESSAGE_KEYS = (("messages", "role", "content"), ("conversations", "from", "value"))
"""Keys of the list of turns, of a turn's role and of its content: chat messages, ShareGPT."""

CONVERSATION_KEYS = ("instruction", *(key for key, *_ in _MESSAGE_KEYS))
"""Keys that identify a JSON object as a conversation."""

CONVERSATION_FORMATS = (
    '{"instruction": text, "input": text, "output": text}, '
    '{"messages": [{"role": "user", "content": text}, ...]} or '
    '{"conversations": [{"from": "human", "value": text}, ...]}'
)
"""Accepted JSON objects, as error messages show them."""


class Turn(NamedTuple):
    """One message of a conversation.

    Attributes:
      role: "system" (how to answer; the first turn, if any), "user" (a question), "input" (text
        that the question before it refers to) or "assistant" (an answer).
      content: the text.
    """

    role: str
    content: str


Conversation = tuple[Turn, ...]


class NothingToLearn(ValueError):
    """A valid example that training skips, for example because an answer is empty."""


def parse_conversation(found: Any) -> Conversation:
    """Converts a JSON object in one of `CONVERSATION_FORMATS` to turns.

    Without "output", an instruction is a conversation that has no answer yet.

    Raises:
      ValueError: another format, an unknown role, or an invalid order of roles.
    """
    if not isinstance(found, Mapping):
        raise ValueError(f"write {CONVERSATION_FORMATS}")
    for key, role, content in _MESSAGE_KEYS:
        if key in found:
            turns = _parse_messages(found[key], key, role, content)
            break
    else:
        if not isinstance(found.get("instruction"), str):
            raise ValueError(f"write {CONVERSATION_FORMATS}")
        turns = _parse_instruction(found)
    _check_order(turns)
    return turns


def parse_request(line: str) -> Conversation:
    """Converts a line of input to the conversation to be answered.

    A JSON object with one of `CONVERSATION_KEYS` is parsed; any other line is an instruction.

    Raises:
      ValueError: as `parse_conversation`.
    """
    try:
        found = json.loads(line) if line.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, Mapping) and any(key in found for key in CONVERSATION_KEYS):
        return parse_conversation(found)
    return (Turn(USER, line),)


def conversation_to_json(conversation: Conversation) -> str:
    """Serializes a conversation; examples store it in this form."""
    return json.dumps(conversation, ensure_ascii=False)


def conversation_from_json(text: str) -> Conversation:
    """Inverse of `conversation_to_json`."""
    return tuple(Turn(*turn) for turn in json.loads(text))


def join_contents(conversation: Conversation) -> str:
    """Contents of all turns, one after another on lines of their own."""
    return "\n".join(turn.content for turn in conversation)


def encoder_source(conversation: Conversation) -> str:
    """Text of a conversation that an encoder reads to generate the next answer.

    An instruction is followed by a blank line and its input. In longer conversations each turn is
    prefixed by its role.
    """
    if all(turn.role in (USER, INPUT) for turn in conversation):
        return "\n\n".join(turn.content for turn in conversation)
    return "\n\n".join(f"{role.capitalize()}: {content}" for role, content in conversation)


def check_answered(conversation: Conversation) -> None:
    """Checks that the last turn is an answer.

    Raises:
      ValueError: it is not.
      NothingToLearn: an answer is empty.
    """
    if conversation[-1].role != ASSISTANT:
        raise ValueError("the last turn is no answer")
    for number, turn in enumerate(conversation, 1):
        if turn.role == ASSISTANT and not turn.content.strip():
            raise NothingToLearn(f"turn {number} is an empty answer")


def check_unanswered(conversation: Conversation) -> None:
    """Raises ValueError unless the last turn is a question, or the input of one."""
    if conversation[-1].role not in (USER, INPUT):
        raise ValueError("the last turn is not the user's, so there is nothing to answer")


def _parse_messages(found: Any, key: str, role: str, content: str) -> Conversation:
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise ValueError(f'"{key}" is not a list of turns')
    turns = []
    for number, turn in enumerate(found, 1):
        text = turn.get(content) if isinstance(turn, Mapping) else None
        if not isinstance(text, str):
            raise ValueError(f'turn {number} has no text "{content}"')
        name = turn.get(role)
        if name not in _ROLES:
            raise ValueError(f"turn {number}: unknown role {name!r}; known: {', '.join(_ROLES)}")
        turns.append(Turn(_ROLES[name], text))
    return tuple(turns)


def _parse_instruction(found: Mapping[str, Any]) -> Conversation:
    given = {key: found.get(key) or "" for key in ("instruction", "input")}
    if not all(isinstance(text, str) for text in given.values()):
        raise ValueError('"input" is no text')
    turns = [Turn(USER, given["instruction"])]
    if given["input"]:
        turns.append(Turn(INPUT, given["input"]))
    if "output" in found:
        if not isinstance(found["output"], str):
            raise ValueError('"output" is no text')
        turns.append(Turn(ASSISTANT, found["output"]))
    return tuple(turns)


def _check_order(conversation: Conversation) -> None:
    previous = None
    for number, (role, content) in enumerate(conversation, 1):
        if role not in _NEXT_ROLES[previous]:
            where = "comes first" if previous is None else f"follows one of role {previous}"
            raise ValueError(f"turn {number}, of role {role}, {where}, which is not allowed")
        if role == USER and not content.strip():
            raise ValueError(f"turn {number} is an empty question")
        previous = role
