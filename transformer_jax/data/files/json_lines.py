# SPDX-License-Identifier: Apache-2.0
"""Files with one object per example (`rows`): conversations, preferences and multiple choice."""

import json
from collections.abc import Mapping
from typing import Any

from transformer_jax.conversations.turns import (
    check_answered,
    conversation_from_json,
    conversation_to_json,
    encoder_source,
    join_contents,
    parse_conversation,
    parse_preference,
    require_read,
)
from transformer_jax.data.examples import Corpus, Example, Parsed
from transformer_jax.data.files.rows import open_rows, parse_json, select_rows

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
    prompt, chosen, rejected = parse_preference(row)
    return {
        "turns": conversation_to_json(prompt),
        "chosen": chosen,
        "rejected": rejected,
        "text": "\n".join((join_contents(prompt), chosen, rejected)),
    }


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
