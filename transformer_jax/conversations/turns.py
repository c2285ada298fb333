# SPDX-License-Identifier: Apache-2.0
"""Turns of a conversation, and the JSON formats of data sets.

Every key of an object is read, refused by name, or one of `IGNORED`.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

SYSTEM = "system"
USER = "user"
INPUT = "input"
ASSISTANT = "assistant"

_ROLES = {role: role for role in (SYSTEM, USER, INPUT, ASSISTANT)}
_ROLES |= {"human": USER, "gpt": ASSISTANT}
"""Name of a role in a data set -> role here."""

_NEXT_ROLES = {
    None: (SYSTEM, USER),
    SYSTEM: (USER,),
    USER: (INPUT, ASSISTANT),
    INPUT: (ASSISTANT,),
    ASSISTANT: (USER,),
}
"""Role of a turn (None: before the first turn) -> roles of the next turn."""

_MESSAGE_KEYS = ("messages", "conversations")
"""Keys of a list of turns."""

CONVERSATION_KEYS = ("instruction", *_MESSAGE_KEYS)
"""Keys that identify a JSON object as a conversation."""

_INSTRUCTION_KEYS = ("instruction", "input", "output", "system", "history", "text")
"""Keys of an instruction. "text" is not used: sets on the hub repeat the whole row in it."""

_LEARNED_KEYS = ("weight", "train", "loss")
"""Keys of a message that say whether training learns it: 0 or false, 1 or true."""

_ANSWERS = ("chosen", "rejected")
_PREFERENCE_FORMAT = (
    '{"prompt": text or messages, "chosen": text or messages, "rejected": the same}; the prompt '
    "may be an instruction with its input, or messages that both answers begin with"
)
_REPEATS_CHOSEN = ("output", "messages")
"""Keys that repeat the chosen answer where another key has the prompt."""

CONVERSATION_FORMATS = (
    '{"instruction": text, "input": text, "output": text}, '
    '{"messages": [{"role": "user", "content": text}, ...]} or '
    '{"conversations": [{"from": "human", "value": text}, ...]}'
)
"""Accepted JSON objects, as error messages show them."""


IGNORED = frozenset(
    (
        *("id", "_id", "idx", "index", "uid", "uuid", "row_id", "prompt_id", "question_id"),
        *("conversation_id", "message_id", "source", "dataset", "subset", "split", "origin", "url"),
        *("license", "author", "annotator", "generator", "model", "chosen_model", "rejected_model"),
        *("lang", "language", "category", "categories", "topic", "tags", "type", "task"),
        *("date", "time", "timestamp", "created", "created_at", "updated_at", "version", "hash"),
        *("meta", "metadata", "info", "comment", "notes", "num_tokens", "token_count"),
        *("quality", "score", "rating", "score_chosen", "score_rejected", "chosen_score"),
        *("rejected_score", "chosen_rating", "rejected_rating"),
    )
)
"""Keys that say where a row comes from, without effect on what is learned."""


class Turn(NamedTuple):
    """One message of a conversation.

    Attributes:
      role: "system" (how to answer; the first turn, if any), "user" (a question), "input" (text
        that the question before it refers to) or "assistant" (an answer).
      content: the text.
    """

    role: str
    content: str

    @property
    def is_learned(self) -> bool:
        """True for the answers that training learns."""
        return self.role == ASSISTANT


class GivenTurn(Turn):
    """A turn that training does not learn, although it may be an answer (`_LEARNED_KEYS`)."""

    __slots__ = ()

    @property
    def is_learned(self) -> bool:
        return False


Conversation = tuple[Turn, ...]


class NothingToLearn(ValueError):
    """A valid example that training skips, for example because an answer is empty."""


def parse_conversation(row: Any, *, is_answered: bool = True) -> Conversation:
    """Converts a JSON object in one of `CONVERSATION_FORMATS` to turns.

    "system" beside the turns becomes the first turn; "history" of an instruction, questions with
    their answers, the turns before it; and its "output" the answer, if it is there. If not
    `is_answered`, "output" is not read.

    Raises:
      ValueError: another format, an unknown role, an invalid order of roles, or a key that is not
        read.
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"write {CONVERSATION_FORMATS}")
    key = next((key for key in _MESSAGE_KEYS if row.get(key) is not None), None)
    if key is not None:
        require_read(row, (key, "system", "prompt"))
        turns = _parse_messages(row[key], key)
        first_question = next((turn.content for turn in turns if turn.role == USER), None)
        if row.get("prompt") and row["prompt"] != first_question:  # some sets repeat it
            raise ValueError('"prompt" is not the first question')
    elif isinstance(row.get("instruction"), str):
        require_read(row, _INSTRUCTION_KEYS)
        turns = _parse_instruction(row, is_answered)
    else:
        raise ValueError(f"write {CONVERSATION_FORMATS}")
    turns = (*_parse_system(row), *turns)
    _check_order(turns)
    return turns


def parse_request(line: str) -> Conversation:
    """Converts a line of input to the conversation to be answered.

    A JSON object with one of `CONVERSATION_KEYS` is parsed (ValueError as `parse_conversation`);
    any other line is an instruction.
    """
    try:
        parsed = json.loads(line) if line.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, Mapping) and any(key in parsed for key in CONVERSATION_KEYS):
        return parse_conversation(parsed)
    return (Turn(USER, line),)


def conversation_to_json(conversation: Conversation) -> str:
    """Serializes a conversation; examples store it in this form."""
    turns = [[*turn] if type(turn) is Turn else [*turn, False] for turn in conversation]
    return json.dumps(turns, ensure_ascii=False)


def conversation_from_json(text: str) -> Conversation:
    """Inverse of `conversation_to_json`."""
    return tuple(
        GivenTurn(*turn[:2]) if len(turn) > 2 else Turn(*turn) for turn in json.loads(text)
    )


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
      NothingToLearn: an answer is empty, or none is learned.
    """
    if conversation[-1].role != ASSISTANT:
        raise ValueError("the last turn is no answer")
    for number, turn in enumerate(conversation, 1):
        if turn.role == ASSISTANT and not turn.content.strip():
            raise NothingToLearn(f"turn {number} is an empty answer")
    if not any(turn.is_learned for turn in conversation):
        raise NothingToLearn("no answer is learned (weight, train or loss)")


def check_unanswered(conversation: Conversation) -> None:
    """Raises ValueError unless the last turn is a question, or the input of one."""
    if conversation[-1].role not in (USER, INPUT):
        raise ValueError("the last turn is not the user's, so there is nothing to answer")


def _parse_messages(messages: Any, name: str) -> Conversation:
    """Converts a list of messages, of chats or of ShareGPT, to turns, whose order is not checked.

    Raises ValueError if it is no list of messages, or a role or key is unknown."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ValueError(f'"{name}" is not a list of turns')
    is_sharegpt = isinstance(messages[0], Mapping) and "from" in messages[0]
    role_key, content_key = ("from", "value") if is_sharegpt else ("role", "content")
    turns = []
    for number, message in enumerate(messages, 1):
        try:
            turns.append(_parse_message(message, role_key, content_key))
        except ValueError as error:
            raise ValueError(f'"{name}", turn {number}: {error}') from error
    return tuple(turns)


def _parse_message(message: Any, role_key: str, content_key: str) -> Turn:
    """Converts a message to a turn, which is learned unless the message says otherwise."""
    if not isinstance(message, Mapping) or content_key not in message:
        raise ValueError(f'no text "{content_key}"')
    name = message.get(role_key)
    if not isinstance(name, str) or name not in _ROLES:
        raise ValueError(f"unknown role {name!r}; known: {', '.join(_ROLES)}")
    require_read(message, (role_key, content_key, *_LEARNED_KEYS))
    role = _ROLES[name]
    text = _content_text(message[content_key])
    flags = {key: message[key] for key in _LEARNED_KEYS if message.get(key) is not None}
    for key, value in flags.items():
        if value not in (0, 1) or (value and role != ASSISTANT):
            raise ValueError(
                f"{key!r} is {str(value)[:20]}: an answer is learned (1, true) or not (0, false), "
                "other turns never"
            )
    return Turn(role, text) if all(flags.values()) else GivenTurn(role, text)


def _content_text(content: Any) -> str:
    """Text of a message: a text, null (empty), or a list of one part of type "text"."""
    match content:
        case str():
            return content
        case None:
            return ""
        case [{"type": "text", "text": str(text), **rest}] if not any(rest.values()):
            return text
    raise ValueError("the content is neither a text nor one part of type text")


def _parse_system(row: Mapping[str, Any]) -> Conversation:
    """The system turn that a row has beside its other turns, if any."""
    system = _text(row, "system")
    return (Turn(SYSTEM, system),) if system else ()


def _text(row: Mapping[str, Any], key: str) -> str:
    """A text of a row, which may be missing or null."""
    text = row.get(key)
    if text is not None and not isinstance(text, str):
        raise ValueError(f'"{key}" is no text')
    return text or ""


def _parse_instruction(row: Mapping[str, Any], is_answered: bool) -> Conversation:
    turns: list[Turn] = []
    history = row.get("history") or []
    for pair in history if isinstance(history, list) else [history]:
        match pair:
            case [str(question), str(answer)]:
                turns += [Turn(USER, question), Turn(ASSISTANT, answer)]
            case _:
                raise ValueError('"history" is not a list of [question, answer]')
    turns.append(Turn(USER, row["instruction"]))
    instruction_input = _text(row, "input")
    if instruction_input:
        turns.append(Turn(INPUT, instruction_input))
    if is_answered and "output" in row:
        turns.append(Turn(ASSISTANT, _text(row, "output")))
    return tuple(turns)


def parse_preference(row: Any) -> tuple[Conversation, str, str]:
    """Converts a JSON object to a conversation to be answered, a better and a worse answer.

    Raises:
      ValueError: another format, or both answers do not answer the same.
      NothingToLearn: an answer is empty or not learned, or both are the same.
    """
    if not isinstance(row, Mapping) or any(name not in row for name in _ANSWERS):
        raise ValueError(f"write {_PREFERENCE_FORMAT}")
    before, chosen = _split_answer(row["chosen"], "chosen")
    before_rejected, rejected = _split_answer(row["rejected"], "rejected")
    if before != before_rejected:
        raise ValueError('"chosen" and "rejected" differ before their last turns')
    prompt = _parse_prompt(row)
    if before and prompt and not _repeats(before, prompt):
        raise ValueError('the prompt differs from the turns before the last of "chosen"')
    turns = before or prompt
    if not turns:
        raise ValueError(f"write {_PREFERENCE_FORMAT}")
    try:
        _check_order(turns)
    except ValueError as error:
        raise ValueError(f"the prompt: {error}") from error
    check_unanswered(turns)
    for name, answer in zip(_ANSWERS, (chosen, rejected), strict=True):
        if not answer.strip():
            raise NothingToLearn(f'"{name}" is an empty answer')
    if chosen == rejected:
        raise NothingToLearn("both answers are the same")
    return turns, chosen, rejected


def _parse_prompt(row: Mapping[str, Any]) -> Conversation:
    """Turns to be answered, from the keys beside the answers; empty if there are none."""
    rest = {key: value for key, value in row.items() if key not in _ANSWERS}
    prompt = rest.pop("prompt", None)
    if prompt is None and any(rest.get(key) is not None for key in CONVERSATION_KEYS):
        return parse_conversation(rest, is_answered=False)
    require_read(rest, ("prompt", "system", *_REPEATS_CHOSEN))
    if prompt is None:
        return _parse_system(rest)
    is_text = isinstance(prompt, str)
    turns = (Turn(USER, prompt),) if is_text else _parse_messages(prompt, "prompt")
    return (*_parse_system(rest), *turns)


def _repeats(before: Conversation, prompt: Conversation) -> bool:
    """Returns True if the turns before both answers are the prompt, or a prompt of one question is
    the first or the last of theirs."""
    questions = [turn for turn in before if turn.role == USER]
    first_and_last = questions[:1] + questions[-1:]
    return before == prompt or (len(prompt) == 1 and prompt[0] in first_and_last)


def _split_answer(value: Any, name: str) -> tuple[Conversation, str]:
    """Turns before an answer and its text, from a text, a message or a list of messages."""
    if isinstance(value, str):
        return (), value
    messages = [value] if isinstance(value, Mapping) else value
    if not isinstance(messages, list) or not messages:
        raise ValueError(f'"{name}" is neither a text nor messages')
    *before, answer = _parse_messages(messages, name)
    if answer.role != ASSISTANT:
        raise ValueError(f'"{name}": the last turn is of role {answer.role!r}, no answer')
    if not answer.is_learned:
        raise NothingToLearn(f'"{name}" is not learned (weight, train or loss)')
    return tuple(before), answer.content


def _check_order(conversation: Conversation) -> None:
    """Raises ValueError if roles follow each other that may not, or a question is empty."""
    previous = None
    for number, (role, content) in enumerate(conversation, 1):
        if role not in _NEXT_ROLES[previous]:
            place = "comes first" if previous is None else f"follows one of role {previous}"
            raise ValueError(f"turn {number}, of role {role}, {place}, which is not allowed")
        if role == USER and not content.strip():
            raise ValueError(f"turn {number} is an empty question")
        previous = role


def require_read(row: Mapping[str, Any], read: Collection[str]) -> None:
    """Raises ValueError if a key of an object has a value, and is neither among those that the
    caller reads nor one of `IGNORED`: a system prompt, tools or a weight may change what a row
    means."""
    for key, value in row.items():
        says_nothing = value is None or (isinstance(value, str | list | dict) and not value)
        if not (key in read or key in IGNORED or says_nothing):
            raise ValueError(
                f"the key {str(key)[:60]!r} is not read, and what it says would be lost; remove it "
                f"(read: {', '.join(read)})"
            )
