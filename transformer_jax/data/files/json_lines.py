"""Files with one object per example, JSON lines or Parquet: conversations, preferences and
multiple choice.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

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
from transformer_jax.data.examples import Corpus, Example, Parsed, RandomAccess, Selection
from transformer_jax.data.files.lines import TextLines
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

_ANSWERS = ("chosen", "rejected")
_PREFERENCE_FORMAT = (
    '{"prompt": text or messages, "chosen": text or messages, "rejected": the same}; the prompt '
    "may be an instruction with its input, or messages that both answers begin with"
)

CHOICES_FORMAT = (
    '{"context": text, "choices": [text, text, ...], "answer": index of the right one, from 0}'
)
"""JSON object of a multiple-choice example, as error messages show it."""


@dataclass(frozen=True, repr=False)
class JsonLines(RandomAccess[Any]):
    """Parsed lines of a JSON-lines file.

    Attributes:
      lines: the file.
    """

    lines: TextLines

    def __len__(self) -> int:
        return len(self.lines)

    def item(self, index: int) -> Any:
        return parse_json(self.lines[index])


@dataclass(frozen=True, repr=False)
class ParquetRows(RandomAccess[Any]):
    """Rows of a Parquet file as dicts, without null values.

    Attributes:
      table: a `pyarrow.Table`.
    """

    table: Any

    @classmethod
    def open(cls, path: str) -> "ParquetRows":
        """Maps a file into memory.

        Raises:
          UserError: it is not a Parquet file, or cannot be read.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return cls(pq.read_table(path, memory_map=True))
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"cannot read {path} as Parquet: {error}") from error

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def item(self, index: int) -> Any:
        (row,) = self.table.slice(index, 1).to_pylist()
        return {key: value for key, value in row.items() if value is not None}


def read_objects(path: str, split: str, to_example: Callable[[Any], Example]) -> Corpus:
    """Reads the examples of a file.

    Args:
      path: JSON lines (plain, .gz or .zst) or Parquet (.parquet).
      split: "train" skips examples with nothing to learn, and logs a warning.
      to_example: converts an object. It raises ValueError if the object is invalid, and
        `NothingToLearn` if training may skip it.

    Raises:
      UserError: the file cannot be read, has no example, or has an invalid line; the first one is
        named.
    """
    rows: RandomAccess[Any] = (
        ParquetRows.open(path) if path.endswith(".parquet") else JsonLines(TextLines(path))
    )
    kept, reason = list[int](), ""
    for i in range(len(rows)):
        try:
            to_example(rows[i])
            kept.append(i)
        except ValueError as error:
            if split != "train" or not isinstance(error, NothingToLearn):
                raise UserError(f"{path}, line {i + 1}: {error}") from error
            reason = reason or f"line {i + 1}: {error}"
    if len(kept) < len(rows):
        logger.warning(
            "left out %d of %d lines of %s, which have nothing to learn (%s)",
            *(len(rows) - len(kept), len(rows), path, reason),
        )
    if not kept:
        raise UserError(f"{path} has no line to learn from")
    return Selection(Parsed(rows, to_example), np.array(kept))


def parse_json(line: str) -> Any:
    """Parses a line; ValueError if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is no JSON ({error})") from error


def read_conversations(path: str, split: str) -> Corpus:
    """Reads the conversations of a file: {"turns": JSON of the conversation, "text": all contents}.

    Training skips conversations with an empty answer. Raises as `read_objects`.
    """
    return read_objects(path, split, _conversation_example)


def _conversation_example(found: Any) -> Example:
    conversation = parse_conversation(found)
    check_answered(conversation)
    return {"turns": conversation_to_json(conversation), "text": join_contents(conversation)}


def read_answers(path: str, split: str) -> Corpus:
    """Reads the answers in a file of conversations: {"source": turns before it, "target": answer}.

    This is the form of conversations for encoder-decoders. Raises as `read_objects`.
    """
    conversations = read_conversations(path, split)
    positions = [
        (i, end)
        for i, example in enumerate(conversations)
        for end, turn in enumerate(conversation_from_json(example["turns"]))
        if turn.role == ASSISTANT
    ]

    def read_answer(position: tuple[int, int]) -> Example:
        index, end = position
        turns = conversation_from_json(conversations[index]["turns"])
        return {"source": encoder_source(turns[:end]), "target": turns[end].content}

    return Parsed(positions, read_answer)


def read_preferences(path: str, split: str) -> Corpus:
    """Reads questions with a better and a worse answer.

    An example is {"turns": JSON of the conversation up to the question, "chosen": the better
    answer, "rejected": the other one, "text": all contents}. Training skips pairs with an empty
    answer or with the same answer twice. Raises as `read_objects`.
    """
    return read_objects(path, split, _preference_example)


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
    chosen, rejected = (found[name] for name in _ANSWERS)
    if "prompt" in found:
        prompt = found["prompt"]
        asked = (Turn(USER, prompt),) if isinstance(prompt, str) else _parse_turns(prompt, "prompt")
    elif any(key in found for key in CONVERSATION_KEYS):
        asked = parse_conversation({key: value for key, value in found.items() if key != "output"})
    else:
        asked, chosen = _split_last_answer(chosen, "chosen")
        other, rejected = _split_last_answer(rejected, "rejected")
        if asked != other:
            raise ValueError('"chosen" and "rejected" differ before their last turns')
    return asked, _parse_answer(chosen, "chosen"), _parse_answer(rejected, "rejected")


def _split_last_answer(found: Any, name: str) -> tuple[Conversation, str]:
    if not isinstance(found, list):
        raise ValueError(f"write {_PREFERENCE_FORMAT}")
    turns = _parse_turns(found, name)
    if turns[-1].role != ASSISTANT:
        raise ValueError(f'"{name}": the last turn is no answer')
    return turns[:-1], turns[-1].content


def _parse_turns(found: Any, name: str) -> Conversation:
    try:
        return parse_conversation({"messages": found})
    except ValueError as error:
        raise ValueError(f'"{name}": {error}') from error


def _parse_answer(found: Any, name: str) -> str:
    """Returns the text of an answer, which may be a list of one assistant message."""
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], Mapping):
        role, found = found[0].get("role"), found[0].get("content")
        if role != ASSISTANT:
            raise ValueError(f'"{name}" is a turn of role {role!r}, no answer')
    if not isinstance(found, str):
        raise ValueError(f'"{name}" is neither a text nor one message of the assistant')
    return found


def read_choices(path: str) -> Corpus:
    """Reads the multiple-choice examples of a file, JSON objects in `CHOICES_FORMAT`.

    An example is {"context": text, "choices": the list as JSON, "answer": index of the right choice
    as digits, "text": the context with the right choice}. Raises as `read_objects`.
    """
    return read_objects(path, "all", _choices_example)


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
