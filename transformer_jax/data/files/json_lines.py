"""Files of objects, one an example: JSON lines, or the rows of Parquet."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transformer_jax.conversations import (
    ASSISTANT,
    KEYS,
    USER,
    Conversation,
    NothingToLearn,
    Turn,
    as_source,
    check_answered,
    check_asks,
    contents,
    from_object,
    from_text,
    to_text,
)
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed, RandomAccess, Selection
from transformer_jax.data.files.text import TextLines, open_files
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)


def read_objects(path: str, split: str, example: Callable[[Any], Example]) -> Corpus:
    """The examples of a file; "train" loses those that teach nothing, with a warning.

    Args:
      path: JSON lines, plain or compressed (by the ending, .gz or .zst), or Parquet (.parquet).
      split: what they are for.
      example: makes one of an object; ValueError where it is none, `NothingToLearn` where training
        may leave it out.

    Raises:
      UserError: the file cannot be read, has no example, or a line is none (the first one is
        named).
    """
    rows = opened(path)
    kept, reason = list[int](), ""
    for i in range(len(rows)):
        try:
            example(rows[i])
            kept.append(i)
        except ValueError as error:
            if split != "train" or not isinstance(error, NothingToLearn):
                raise UserError(f"{path}, line {i + 1}: {error}") from error
            reason = reason or f"line {i + 1}: {error}"
    if len(kept) < len(rows):
        logger.warning(
            "left out %d of %d lines of %s, which teach nothing (%s)",
            *(len(rows) - len(kept), len(rows), path, reason),
        )
    if not kept:
        raise UserError(f"{path} has no line to learn from")
    return Selection(Parsed(rows, example), np.array(kept))


def opened(path: str) -> RandomAccess[Any]:
    """The objects of a file, by its ending; arguments and errors as of `read_objects`."""
    return ParquetRows.opened(path) if path.endswith(".parquet") else JsonLines(TextLines(path))


@dataclass(frozen=True, repr=False)
class JsonLines(RandomAccess[Any]):
    """What each line of a file holds.

    Attributes:
      lines: of the file.
    """

    lines: TextLines

    def __len__(self) -> int:
        return len(self.lines)

    def item(self, index: int) -> Any:
        try:
            return json.loads(self.lines[index])
        except (ValueError, RecursionError) as error:
            raise ValueError(f"this is no JSON ({error})") from error


@dataclass(frozen=True, repr=False)
class ParquetRows(RandomAccess[Any]):
    """The rows of a Parquet file, as objects.

    Attributes:
      table: of pyarrow.
    """

    table: Any

    @classmethod
    def opened(cls, path: str) -> "ParquetRows":
        """Those of a file; UserError where it is none."""
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


# FOLDED data.files.choices: Files of multiple choice: JSON lines {"context": text, "choices":
# [text, ...], "answer": place}. An example is {"context": text, "choices": the list as JSON,
# "answer": the place as digits, "text": the context with the right choice}.


FORM = '{"context": text, "choices": [text, text, ...], "answer": place of the right one, from 0}'


def open_choices(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The corpora of a split of `choices`: one for each file.

    Raises:
      UserError: no file is named, or one cannot be used.
    """
    return open_files(config, split, read_choices)


def read_choices(path: str) -> Corpus:
    """The examples of a file, plain or gzip (by the ending .gz).

    Raises:
      UserError: it cannot be read, or a line is no example (the first one is named).
    """
    lines = TextLines(path)
    for number, line in enumerate(lines, 1):
        try:
            _choices_example(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}") from error
    return Parsed(lines, _choices_example)


def question_of(line: str) -> tuple[str, list[str]]:
    """The context and the choices of an object of that form, with an answer or without.

    Raises:
      ValueError: it is none.
    """
    found = _object(line)
    return found["context"], found["choices"]


def continuation(context: str, choice: str) -> str:
    """What follows the context: the choice, behind a space where neither has one."""
    apart = not context or context[-1].isspace() or choice[:1].isspace()
    return choice if apart else f" {choice}"


def _object(line: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is no JSON ({error}); write {FORM}") from error
    choices = found.get("choices") if isinstance(found, Mapping) else None
    if not isinstance(choices, list) or not isinstance(found.get("context"), str):
        raise ValueError(f"write {FORM}")
    if len(choices) < 2 or not all(isinstance(text, str) and text for text in choices):
        raise ValueError('"choices" are not two texts or more')
    return found


def _choices_example(line: str) -> Example:
    found = _object(line)
    context, choices, answer = found["context"], found["choices"], found.get("answer")
    if type(answer) is not int or not 0 <= answer < len(choices):
        last = len(choices) - 1
        raise ValueError(f'"answer" is {answer!r}; write 0 to {last}, a place in "choices"')
    return {
        "context": context,
        "choices": json.dumps(choices, ensure_ascii=False),
        "answer": str(answer),
        "text": context + continuation(context, choices[answer]),
    }


# FOLDED data.files.conversations: Files of conversations, JSON lines or Parquet: instructions,
# chat messages or ShareGPT's turns. An example is {"turns": the conversation as
# `conversations.to_text` writes it, "text": all that is said}.


def open_conversations(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The corpora of a split of `conversations`: one for each file.

    Raises:
      UserError: no file is named, or one cannot be used.
    """
    return open_files(config, split, lambda path: read_conversations(path, split))


def open_answers(config: DataConfig, split: str) -> Sequence[Corpus]:
    """As `open_conversations`, an example {"source", "target"} for each answer: what comes before
    it as text, and the answer; of encoder-decoders."""
    return open_files(config, split, lambda path: read_answers(path, split))


def read_answers(path: str, split: str) -> Corpus:
    """Each answer of a file's conversations, behind what comes before it; as
    `read_conversations`."""
    conversations = read_conversations(path, split)
    places = [
        (i, end)
        for i, example in enumerate(conversations)
        for end, turn in enumerate(from_text(example["turns"]))
        if turn.role == ASSISTANT
    ]

    def answer(place: tuple[int, int]) -> Example:
        index, end = place
        turns = from_text(conversations[index]["turns"])
        return {"source": as_source(turns[:end]), "target": turns[end].content}

    return Parsed(places, answer)


def read_conversations(path: str, split: str) -> Corpus:
    """The conversations of a file, as `objects.read_objects`; those with an empty answer teach
    nothing."""
    return read_objects(path, split, _conversation_example)


def _conversation_example(found: Any) -> Example:
    conversation = from_object(found)
    check_answered(conversation)
    return {"turns": to_text(conversation), "text": contents(conversation)}


# FOLDED data.files.preferences: Files of preferences, JSON lines or Parquet: of two answers to a
# question, which one is better. An example is {"turns": the conversation up to the question, as
# `conversations.to_text` writes it, "chosen" and "rejected": the answers, "text": all that is
# said}.


_ANSWERS = ("chosen", "rejected")
_FORM = (
    '{"prompt": text or messages, "chosen": text or messages, "rejected": the same}; the prompt '
    "may be an instruction with its input, or messages that both answers begin with"
)


def open_preferences(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The corpora of a split of `preferences`: one for each file.

    Raises:
      UserError: no file is named, or one cannot be used.
    """
    return open_files(config, split, lambda path: read_preferences(path, split))


def read_preferences(path: str, split: str) -> Corpus:
    """The pairs of a file, as `objects.read_objects`; those with an empty answer, or with the same
    answer twice, teach nothing."""
    return read_objects(path, split, _preference_example)


def _preference_example(found: Any) -> Example:
    if not isinstance(found, Mapping) or any(name not in found for name in _ANSWERS):
        raise ValueError(f"write {_FORM}")
    asked, chosen, rejected = _pair(found)
    check_asks(asked)
    for name, answer in zip(_ANSWERS, (chosen, rejected), strict=True):
        if not answer.strip():
            raise NothingToLearn(f'"{name}" is an empty answer')
    if chosen == rejected:
        raise NothingToLearn("both answers are the same")
    text = "\n".join((contents(asked), chosen, rejected))
    return {"turns": to_text(asked), "chosen": chosen, "rejected": rejected, "text": text}


def _pair(found: Mapping[str, Any]) -> tuple[Conversation, str, str]:
    """What is asked, and both answers."""
    chosen, rejected = (found[name] for name in _ANSWERS)
    if "prompt" in found:
        prompt = found["prompt"]
        asked = (Turn(USER, prompt),) if isinstance(prompt, str) else _messages(prompt, "prompt")
    elif any(key in found for key in KEYS):
        asked = from_object({key: value for key, value in found.items() if key != "output"})
    else:
        asked, chosen = _divided(chosen, "chosen")
        again, rejected = _divided(rejected, "rejected")
        if asked != again:
            raise ValueError('"chosen" and "rejected" differ before their last turns')
    return asked, _answer(chosen, "chosen"), _answer(rejected, "rejected")


def _divided(found: Any, name: str) -> tuple[Conversation, str]:
    """A conversation up to its last answer, and that answer."""
    if not isinstance(found, list):
        raise ValueError(f"write {_FORM}")
    turns = _messages(found, name)
    if turns[-1].role != ASSISTANT:
        raise ValueError(f'"{name}": the last turn is no answer')
    return turns[:-1], turns[-1].content


def _messages(found: Any, name: str) -> Conversation:
    try:
        return from_object({"messages": found})
    except ValueError as error:
        raise ValueError(f'"{name}": {error}') from error


def _answer(found: Any, name: str) -> str:
    """A text, or the one message that says it."""
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], Mapping):
        role, found = found[0].get("role"), found[0].get("content")
        if role != ASSISTANT:
            raise ValueError(f'"{name}" is a turn of role {role!r}, no answer')
    if not isinstance(found, str):
        raise ValueError(f'"{name}" is neither a text nor one message of the assistant')
    return found
