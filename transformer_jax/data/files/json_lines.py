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
from transformer_jax.conversations.turns import (
    MESSAGE_KEYS,
    check_order,
    parse_messages,
    parse_system,
    require_read,
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


def _conversation_example(row: Any) -> Example:
    conversation = parse_conversation(row)
    check_answered(conversation)
    return {"turns": conversation_to_json(conversation), "text": join_contents(conversation)}


def read_answers(path: str, split: str, on_bad_row: str = "stop") -> Corpus:
    """Reads the answers in a file of conversations: {"source": turns before it, "target": answer}.

    This is the form of conversations for encoder-decoders. Raises as `open_rows` and `select_rows`.
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


def _preference_example(row: Any) -> Example:
    if not isinstance(row, Mapping) or any(name not in row for name in _ANSWERS):
        raise ValueError(f"write {_PREFERENCE_FORMAT}")
    prompt, chosen, rejected = _parse_preference(row)
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


def _parse_preference(row: Mapping[str, Any]) -> tuple[Conversation, str, str]:
    """Prompt and both answers of a row."""
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
        check_order(turns)
    except ValueError as error:
        raise ValueError(f"the prompt: {error}") from error
    return turns, chosen, rejected


def _parse_prompt(row: Mapping[str, Any]) -> Conversation:
    """Turns to be answered, from the keys beside the answers; empty if there are none."""
    rest = {key: value for key, value in row.items() if key not in _ANSWERS}
    prompt = rest.pop("prompt", None)
    if prompt is None and any(rest.get(key) is not None for key in CONVERSATION_KEYS):
        return parse_conversation(rest, is_answered=False)
    require_read(rest, ("prompt", "system", *_REPEATS_CHOSEN))
    if prompt is None:
        return parse_system(rest)
    is_text = isinstance(prompt, str)
    turns = (Turn(USER, prompt),) if is_text else _parse_messages(prompt, "prompt")
    return (*parse_system(rest), *turns)


def _repeats(before: Conversation, prompt: Conversation) -> bool:
    """Returns True if the turns before both answers are the prompt, or a prompt of one question is
    the first or the last of theirs."""
    questions = [turn for turn in before if turn.role == USER]
    return before == prompt or (len(prompt) == 1 and prompt[0] in (questions[0], questions[-1]))


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


def _parse_messages(messages: Any, name: str) -> Conversation:
    """Turns of messages with the keys of chat messages or of ShareGPT."""
    chat_keys, sharegpt_keys = MESSAGE_KEYS
    first = messages[0] if isinstance(messages, list) and messages else None
    is_sharegpt = isinstance(first, Mapping) and "from" in first
    _, role, content = sharegpt_keys if is_sharegpt else chat_keys
    try:
        return parse_messages(messages, name, role, content)
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
        question = parse_json(line)
    except ValueError as error:
        raise ValueError(f"{error}; write {CHOICES_FORMAT}") from error
    _check_question(question)
    return question["context"], question["choices"]


def choice_continuation(context: str, choice: str) -> str:
    """Text of a choice after the context, with a space between unless one has white space there."""
    separated = not context or context[-1].isspace() or choice[:1].isspace()
    return choice if separated else f" {choice}"


def _check_question(row: Any) -> None:
    choices = row.get("choices") if isinstance(row, Mapping) else None
    if not isinstance(choices, list) or not isinstance(row.get("context"), str):
        raise ValueError(f"write {CHOICES_FORMAT}")
    if len(choices) < 2 or not all(isinstance(text, str) and text for text in choices):
        raise ValueError('"choices" are not two texts or more')
    require_read(row, ("context", "choices", "answer"))


def _choices_example(row: Any) -> Example:
    _check_question(row)
    context = row["context"]
    choices = row["choices"]
    answer = row.get("answer")
    if type(answer) is not int or not 0 <= answer < len(choices):  # True is no index
        last = len(choices) - 1
        raise ValueError(f'"answer" is {answer!r}; write 0 to {last}, an index of "choices"')
    return {
        "context": context,
        "choices": json.dumps(choices, ensure_ascii=False),
        "answer": str(answer),
        "text": context + choice_continuation(context, choices[answer]),
    }
