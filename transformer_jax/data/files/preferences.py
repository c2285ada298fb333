"""Files of preferences, JSON lines or Parquet: of two answers to a question, which one is better.

An example is {"turns": the conversation up to the question, as `conversations.to_text` writes it,
"chosen" and "rejected": the answers, "text": all that is said}.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.conversations import (
    ASSISTANT,
    KEYS,
    USER,
    Conversation,
    NothingToLearn,
    Turn,
    check_asks,
    contents,
    from_object,
    to_text,
)
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example
from transformer_jax.data.files.objects import read_objects
from transformer_jax.data.files.text import open_files

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
    return read_objects(path, split, _example)


def _example(found: Any) -> Example:
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
