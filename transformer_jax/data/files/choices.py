"""Files of multiple choice: JSON lines {"context": text, "choices": [text, ...], "answer": place}.

An example is {"context": text, "choices": the list as JSON, "answer": the place as digits, "text":
the context with the right choice}.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed
from transformer_jax.data.files.text import TextLines, open_files
from transformer_jax.errors import UserError

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
            _example(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}") from error
    return Parsed(lines, _example)


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


def _example(line: str) -> Example:
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
