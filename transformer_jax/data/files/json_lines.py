# SPDX-License-Identifier: Apache-2.0
"""Files with one object per example (`rows`): conversations, preferences and multiple choice."""

import json
from collections.abc import Mapping
from typing import Any

from transformer_jax.conversations import (
    ASSISTANT,
    CONVERSATION_KEYS,
    USER,
    Conversation,
    NothingToLearn,
    Turn,
    check_answered,
    check_unanswered,
    conversation_from_json,
    conversation_to_json,
    encoder_source,
    join_contents,
    parse_conversation,
)
from transformer_jax.conversations.keys import require_read
from transformer_jax.conversations.turns import (
    MESSAGE_KEYS,
    check_order,
    parse_messages,
    parse_system,
)
from transformer_jax.data.examples import Corpus, Example, Parsed
from transformer_jax.data.files.rows import open_rows, parse_json, select_rows

_ANSWERS = ("chosen", "rejected")
_PREFERENCE_FORMAT = (
    '{"prompt": text or messages, "chosen": text or messages, "rejected": the same}; the prompt '
    "may be an instruction with its input, or messages that both answers begin with"
)
_REPEATS_CHOSEN = ("output", "messages")
"""Keys that repeat the chosen answer where another key has the prompt."""

CHOICES_FORMAT = (
    '{"context": text, "choices": [text, text, ...], "answer": index of the right one, from 0}'
)
"""JSON object of a multiple-choice example, as error messages show it."""


def read_conversations(path: str, split: str, on_bad_row: str = "stop") -> Corpus:
    """Reads the conversations of a file: {"turns": JSON of the conversation, "text": all contents}.

    Training skips conversations with an empty answer. Raises as `open_rows` and `select_rows`.
    """
    return select_rows(open_rows(path), _conversation_example, split, on_bad_row)


def _conversation_example(found: Any) -> Example:
    conversation = parse_conversation(found)
    check_answered(conversation)
    return {"turns": conversation_to_json(conversation), "text": join_contents(conversation)}


def read_answers(path: str, split: str, on_bad_row: str = "stop") -> Corpus:
    """Reads the answers in a file of conversations: {"source": turns before it, "target": answer}.

    This is the form of conversations for encoder-decoders. Raises as `read_conversations`.
    """
    conversations = read_conversations(path, split, on_bad_row)
    positions = [
        (i, end)
        for i, example in enumerate(conversations)
        for end, turn in enumerate(conversation_from_json(example["turns"]))
        if turn.is_learned
    ]

    def read_answer(position: tuple[int, int]) -> Example:
        index, end = position
        turns = conversation_from_json(conversations[index]["turns"])
        return {"source": encoder_source(turns[:end]), "target": turns[end].content}

    return Parsed(positions, read_answer)


def read_preferences(path: str, split: str, on_bad_row: str = "stop") -> Corpus:
    """Reads questions with a better and a worse answer.

    An example is {"turns": JSON of the conversation up to the question, "chosen": the better
    answer, "rejected": the other one, "text": all contents}. Training skips pairs with an empty
    answer or with the same answer twice. Raises as `open_rows` and `select_rows`.
    """
    return select_rows(open_rows(path), _preference_example, split, on_bad_row)


def _preference_example(found: Any) -> Example:
    if not isinstance(found, Mapping) or any(name not in found for name in _ANSWERS):
        raise ValueError(f"write {_PREFERENCE_FORMAT}")
    prompt, chosen, rejected = _parse_preference(found)
    check_unanswered(prompt)
    for name, answer in zip(_ANSWERS, (chosen, rejected), strict=True):
        if not answer.strip():
            raise NothingToLearn(f'"{name}" is an empty answer')
    if chosen == rejected:
        raise NothingToLearn("both answers are the same")
    return {
        "turns": conversation_to_json(prompt),
        "chosen": chosen,
        "rejected": rejected,
        "text": "\n".join((join_contents(prompt), chosen, rejected)),
    }


def _parse_preference(found: Mapping[str, Any]) -> tuple[Conversation, str, str]:
    """Returns the prompt and both answers."""
    (before, chosen), (other, rejected) = (_split_answer(found[name], name) for name in _ANSWERS)
    if before != other:
        raise ValueError('"chosen" and "rejected" differ before their last turns')
    asked = _parse_asked(found)
    if before and asked and not _repeats(before, asked):
        raise ValueError('the prompt differs from the turns before the last of "chosen"')
    turns = before or asked
    if not turns:
        raise ValueError(f"write {_PREFERENCE_FORMAT}")
    try:
        check_order(turns)
    except ValueError as error:
        raise ValueError(f"the prompt: {error}") from error
    return turns, chosen, rejected


def _parse_asked(found: Mapping[str, Any]) -> Conversation:
    """The turns to be answered that are beside the answers; empty if there are none."""
    rest = {key: value for key, value in found.items() if key not in _ANSWERS}
    prompt = rest.pop("prompt", None)
    if prompt is None and any(rest.get(key) is not None for key in CONVERSATION_KEYS):
        return parse_conversation(rest, is_answered=False)
    require_read(rest, ("prompt", "system", *_REPEATS_CHOSEN))
    if prompt is None:
        return parse_system(rest.get("system"))
    is_text = isinstance(prompt, str)
    asked = (Turn(USER, prompt),) if is_text else _parse_messages(prompt, "prompt")
    return (*parse_system(rest.get("system")), *asked)


def _repeats(before: Conversation, asked: Conversation) -> bool:
    """Returns True if the turns before both answers are the prompt, or a prompt of one question is
    the first or the last of theirs."""
    questions = [turn for turn in before if turn.role == USER]
    return before == asked or (len(asked) == 1 and asked[0] in (questions[0], questions[-1]))


def _split_answer(found: Any, name: str) -> tuple[Conversation, str]:
    """The turns before an answer, and its text: a text, a message or a list of messages."""
    if isinstance(found, str):
        return (), found
    messages = [found] if isinstance(found, Mapping) else found
    if not isinstance(messages, list) or not messages:
        raise ValueError(f'"{name}" is neither a text nor messages')
    *before, answer = _parse_messages(messages, name)
    if answer.role != ASSISTANT:
        raise ValueError(f'"{name}": the last turn is of role {answer.role!r}, no answer')
    if not answer.is_learned:
        raise NothingToLearn(f'"{name}" is not learned (weight, train or loss)')
    return tuple(before), answer.content


def _parse_messages(found: Any, name: str) -> Conversation:
    """Messages with the keys of chat messages or of ShareGPT."""
    first = found[0] if isinstance(found, list) and found else None
    is_shared = isinstance(first, Mapping) and "from" in first
    keys = MESSAGE_KEYS[int(is_shared)][1:]
    try:
        return parse_messages(found, name, *keys)
    except ValueError as error:
        raise ValueError(f'"{name}": {error}') from error


def read_choices(path: str, split: str = "all", on_bad_row: str = "stop") -> Corpus:
    """Reads the multiple-choice examples of a file, JSON objects in `CHOICES_FORMAT`.

    An example is {"context": text, "choices": the list as JSON, "answer": index of the right choice
    as digits, "text": the context with the right choice}. Raises as `open_rows` and `select_rows`.
    """
    return select_rows(open_rows(path), _choices_example, split, on_bad_row)


def parse_question(line: str) -> tuple[str, list[str]]:
    """Returns the context and the choices of a JSON object in `CHOICES_FORMAT`; "answer" is
    optional.

    Raises:
      ValueError: another format.
    """
    try:
        found = parse_json(line)
    except ValueError as error:
        raise ValueError(f"{error}; write {CHOICES_FORMAT}") from error
    _check_question(found)
    return found["context"], found["choices"]


def choice_continuation(context: str, choice: str) -> str:
    """Text of a choice after the context, with a space between unless one has white space there."""
    separated = not context or context[-1].isspace() or choice[:1].isspace()
    return choice if separated else f" {choice}"


def _check_question(found: Any) -> None:
    choices = found.get("choices") if isinstance(found, Mapping) else None
    if not isinstance(choices, list) or not isinstance(found.get("context"), str):
        raise ValueError(f"write {CHOICES_FORMAT}")
    if len(choices) < 2 or not all(isinstance(text, str) and text for text in choices):
        raise ValueError('"choices" are not two texts or more')
    require_read(found, ("context", "choices", "answer"))


def _choices_example(found: Any) -> Example:
    _check_question(found)
    context, choices, answer = found["context"], found["choices"], found.get("answer")
    if type(answer) is not int or not 0 <= answer < len(choices):
        last = len(choices) - 1
        raise ValueError(f'"answer" is {answer!r}; write 0 to {last}, an index of "choices"')
    return {
        "context": context,
        "choices": json.dumps(choices, ensure_ascii=False),
        "answer": str(answer),
        "text": context + choice_continuation(context, choices[answer]),
    }
