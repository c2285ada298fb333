"""Files of conversations, JSON lines or Parquet: instructions, chat messages or ShareGPT's turns.

An example is {"turns": the conversation as `conversations.to_text` writes it, "text": all that is
said}.
"""

from collections.abc import Sequence
from typing import Any

from transformer_jax.conversations import (
    ASSISTANT,
    as_source,
    check_answered,
    contents,
    from_object,
    from_text,
    to_text,
)
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed
from transformer_jax.data.files.objects import read_objects
from transformer_jax.data.files.text import open_files


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
    return read_objects(path, split, _example)


def _example(found: Any) -> Example:
    conversation = from_object(found)
    check_answered(conversation)
    return {"turns": to_text(conversation), "text": contents(conversation)}
