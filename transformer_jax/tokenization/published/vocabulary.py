"""What published tokenizers have in common, and what the files beside them say."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformer_jax.tokenization.specials import Frame

Files = Mapping[str, bytes]
"""File name -> its content."""

CONFIG, SPECIAL_MAP = "tokenizer_config.json", "special_tokens_map.json"
"""Read where they lie beside the files of a format."""


@dataclass(frozen=True)
class Vocabulary:
    """How a published tokenizer reads and writes text.

    Attributes:
      pieces: the entry of each id; None where there is none.
      encode: text -> ids, with nothing around them; special tokens in the text are read as such.
      encode_plain: likewise, but all of it is text.
      decode: ids -> text.
      special: ids that the files themselves say to stand for no text.
      roles: role -> id, where the model itself says so; such as {"eos": 1}.
      frame: what the files put around a text; None where they do not say.
    """

    pieces: Sequence[str | None]
    encode: Callable[[str], list[int]]
    encode_plain: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    special: Collection[int] = ()
    roles: Mapping[str, int] = field(default_factory=dict)
    frame: Frame | None = None


def settings_of(files: Files) -> dict[str, Any]:
    """What `tokenizer_config.json` and `special_tokens_map.json` say, if they are there."""
    found: dict[str, Any] = {}
    for name in (SPECIAL_MAP, CONFIG):
        said = json.loads(files[name]) if name in files else {}
        if not isinstance(said, dict):
            raise ValueError(f"{name} holds no object")
        found |= {key: value for key, value in said.items() if value is not None}
    return found


def read_vocab(content: bytes) -> dict[str, int]:
    """Piece -> id."""
    vocab = json.loads(content)
    if not isinstance(vocab, dict) or not all(type(i) is int and i >= 0 for i in vocab.values()):
        raise ValueError("a vocabulary is not of pieces and their ids")
    return vocab


def by_id(vocab: Mapping[str, int]) -> list[str | None]:
    """The pieces in the order of their ids; None where an id has none."""
    if not vocab or max(vocab.values()) > 10 * len(vocab) + 1000:
        raise ValueError("the vocabulary is empty, or its ids are far beyond its size")
    pieces: list[str | None] = [None] * (1 + max(vocab.values()))
    for piece, i in vocab.items():
        pieces[i] = piece
    return pieces


def content_of(token: Any) -> str:
    """How a token is written, which files give as a text or as an object."""
    return token["content"] if isinstance(token, Mapping) else token
