"""Turns of a conversation, and the forms in which data sets hold them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SYSTEM, USER, INPUT, ASSISTANT = "system", "user", "input", "assistant"


class Turn(NamedTuple):
    """What one side says.

    Attributes:
      role: "system" (how to answer; the first turn, if any), "user" (a question), "input" (what the
        question before it is about) or "assistant" (an answer).
      content: the text.
    """

    role: str
    content: str


Conversation = tuple[Turn, ...]


class NothingToLearn(ValueError):
    """An example is well-formed, but training loses nothing without it: an answer is empty, say."""


_ROLES = {
    "system": SYSTEM,
    "user": USER,
    "human": USER,
    "input": INPUT,
    "assistant": ASSISTANT,
    "gpt": ASSISTANT,
}
"""How data sets name them."""

_MESSAGES = (("messages", "role", "content"), ("conversations", "from", "value"))
"""Key of the turns, and keys of a turn's role and content: of chat messages, and of ShareGPT."""

KEYS = ("instruction", *(key for key, *_ in _MESSAGES))
"""An object of `FORMS` has one of them."""

FORMS = (
    '{"instruction": text, "input": text, "output": text}, '
    '{"messages": [{"role": "user", "content": text}, ...]} or '
    '{"conversations": [{"from": "human", "value": text}, ...]}'
)
"""What a line may be, for messages."""


def from_object(found: Any) -> Conversation:
    """The turns of an object of one of `FORMS`; an "output" that is absent is an answer to come.

    Raises:
      ValueError: it is none, a role is unknown, or the turns come in an order that is no
        conversation's.
    """
    if not isinstance(found, Mapping):
        raise ValueError(f"write {FORMS}")
    for key, role, content in _MESSAGES:
        if key in found:
            turns = _turns(found[key], key, role, content)
            break
    else:
        if not isinstance(found.get("instruction"), str):
            raise ValueError(f"write {FORMS}")
        turns = _of_instruction(found)
    _check_order(turns)
    return turns


def from_line(line: str) -> Conversation:
    """A line that asks: an object of `FORMS`, else, whatever it is, an instruction.

    Raises:
      ValueError: as `from_object`.
    """
    try:
        found = json.loads(line) if line.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, Mapping) and any(key in found for key in KEYS):
        return from_object(found)
    return (Turn(USER, line),)


def from_text(text: str) -> Conversation:
    """The inverse of `to_text`."""
    return tuple(Turn(*turn) for turn in json.loads(text))


def to_text(conversation: Conversation) -> str:
    """A conversation as one string, which examples are made of."""
    return json.dumps(conversation, ensure_ascii=False)


def contents(conversation: Conversation) -> str:
    """All that is said, turn by turn."""
    return "\n".join(turn.content for turn in conversation)


def as_source(conversation: Conversation) -> str:
    """What is asked, as the text that an encoder reads: an instruction, and its input behind a
    blank line; of several turns each by its role."""
    if all(turn.role in (USER, INPUT) for turn in conversation):
        return "\n\n".join(turn.content for turn in conversation)
    return "\n\n".join(f"{role.capitalize()}: {content}" for role, content in conversation)


def check_answered(conversation: Conversation) -> None:
    """Raises ValueError unless there is an answer, and it comes last; `NothingToLearn` where one is
    empty."""
    if conversation[-1].role != ASSISTANT:
        raise ValueError("the last turn is no answer")
    for number, turn in enumerate(conversation, 1):
        if turn.role == ASSISTANT and not turn.content.strip():
            raise NothingToLearn(f"turn {number} is an empty answer")


def check_asks(conversation: Conversation) -> None:
    """Raises ValueError unless an answer is to come."""
    if conversation[-1].role not in (USER, INPUT):
        raise ValueError("the last turn is none of the user's, which could be answered")


def _turns(found: Any, key: str, role: str, content: str) -> Conversation:
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise ValueError(f'"{key}" holds no list of turns')
    turns = []
    for number, turn in enumerate(found, 1):
        says = turn.get(content) if isinstance(turn, Mapping) else None
        if not isinstance(says, str):
            raise ValueError(f'turn {number} has no text "{content}"')
        name = turn.get(role)
        if name not in _ROLES:
            raise ValueError(f"turn {number}: unknown role {name!r}; known: {', '.join(_ROLES)}")
        turns.append(Turn(_ROLES[name], says))
    return tuple(turns)


def _of_instruction(found: Mapping[str, Any]) -> Conversation:
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


_MAY_FOLLOW = {
    None: (SYSTEM, USER),
    SYSTEM: (USER,),
    USER: (INPUT, ASSISTANT),
    INPUT: (ASSISTANT,),
    ASSISTANT: (USER,),
}
"""Role of a turn (None: there is none yet) -> roles of the next."""


def _check_order(conversation: Conversation) -> None:
    before = None
    for number, (role, content) in enumerate(conversation, 1):
        if role not in _MAY_FOLLOW[before]:
            place = "comes first" if before is None else f"follows one of role {before}"
            raise ValueError(f"turn {number}, of role {role}, {place}; it cannot stand there")
        if role == USER and not content.strip():
            raise ValueError(f"turn {number} is an empty question")
        before = role
