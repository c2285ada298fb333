# SPDX-License-Identifier: Apache-2.0
"""The interface of all tokenizers, and functions that their implementations share."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from transformer_jax.summary import Summarized
from transformer_jax.tokenization.specials import Frame, SpecialTokens
from transformer_jax.tokenization.subword_sampling import Resegmenter

_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class Tokenizer(Protocol):
    """Text to token ids and back. Immutable and picklable, so that data workers can hold one.

    A tokenizer with an attribute `resegmenter` (`subword_sampling`) supports `tokenizer.sampling`.
    One whose `encode` reads special tokens that a text spells out, such as "</s>", has a method
    `encode_plain` that encodes them as ordinary characters. One that encodes many texts faster than
    one after another has a method `encode_batch`.
    """

    @property
    def vocab_size(self) -> int:
        """Number of token ids, special tokens included."""

    @property
    def specials(self) -> SpecialTokens:
        """Special tokens by role."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens around them."""

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Token ids of each word on its own, at least one: `unk` if a word would have none.

        If the tokenizer keeps whitespace, all words but the first are encoded with a space before
        them.
        """

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids. Special tokens, unknown included, are dropped."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Vocabulary entry of each id, for display."""

    def starts_word(self, ids: Iterable[int]) -> list[bool]:
        """True for each id that begins a word, or the whitespace before it.

        Special tokens count as words, and so does the id after one. The first id always begins a
        word.
        """

    def count_unknown(self, ids: Iterable[int]) -> int:
        """Number of ids that are `unk`."""


class BaseTokenizer(Summarized):
    """Base class of the tokenizers here: shows a summary in place of the vocabulary.

    `starts_word` asks for `_is_word_start`: for each id, True if its piece is written as the first
    of a word.
    """

    specials: SpecialTokens
    _is_word_start: Sequence[bool]

    def starts_word(self, ids: Iterable[int]) -> list[bool]:
        """Implements `Tokenizer.starts_word`."""
        special = self.specials.ids
        starts = []
        after_special = True  # the first id begins a word
        for i in ids:
            is_special = i in special
            starts.append(is_special or after_special or self._is_word_start[i])
            after_special = is_special
        return starts

    def count_unknown(self, ids: Iterable[int]) -> int:
        """Implements `Tokenizer.count_unknown`."""
        return sum(1 for i in ids if i == self.specials.unk)

    def summary(self) -> dict[str, object]:
        """The number of pieces, the special ones, and some of the others."""
        tokenizer: Any = self
        special = special_token_ids(tokenizer)
        ids = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.specials.ids]
        return {
            "vocab_size": tokenizer.vocab_size,
            "special": ", ".join(f"{piece} {i}" for piece, i in special.items()),
            "pieces": " ".join(tokenizer.pieces(ids[:: max(1, len(ids) // 8)][:8])),
        }


class ListedTokenizer(BaseTokenizer):
    """Base class of the tokenizers that list their pieces, `_pieces`."""

    _pieces: Sequence[str]

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return len(self._pieces)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Implements `Tokenizer.pieces`."""
        return [self._pieces[i] for i in ids]


def begins_with_space(piece: str) -> bool:
    """Returns True for a piece of sentencepiece that begins a word."""
    return piece.startswith("▁") or piece[:1].isspace()


@dataclass(frozen=True)
class Vocabulary:
    """Encoding and decoding functions of a library's tokenizer.

    Attributes:
      pieces: vocabulary entry of each id; None for unused ids.
      encode: text -> ids, without special tokens around them. Reads spelled-out special tokens.
      encode_plain: the same, but encodes spelled-out special tokens as ordinary characters.
      decode: ids -> text.
      special: ids that the files declare as special tokens.
      roles: role -> id, as far as the files declare roles, such as {"eos": 1}.
      frame: special tokens that the files add to a text; None if they do not say.
      begins_word: True for a piece that is written as the first of a word.
      make_resegmenter: makes what draws other tokens for encoded text; None if the model has one
        segmentation of a text.
    """

    pieces: Sequence[str | None]
    encode: Callable[[str], list[int]]
    encode_plain: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    special: Collection[int] = ()
    roles: Mapping[str, int] = field(default_factory=dict)
    frame: Frame | None = None
    begins_word: Callable[[str], bool] = begins_with_space
    make_resegmenter: Callable[[], Resegmenter | None] = lambda: None


class StoredTokenizer(ListedTokenizer):
    """Base class of the tokenizers that libraries run.

    Args:
      content: of the tokenizer's file, from which copies in other processes are made.
      vocabulary: the library's functions.
      num_ids: number of ids, if there are more than pieces.
    """

    def __init__(self, content: bytes, vocabulary: Vocabulary, num_ids: int = 0):
        self.content = content
        self._vocabulary = vocabulary
        unused = [None] * (num_ids - len(vocabulary.pieces))
        self._pieces = [piece or "⟨unused⟩" for piece in (*vocabulary.pieces, *unused)]
        self._is_word_start = list(map(vocabulary.begins_word, self._pieces))

    def __reduce__(self) -> tuple[type, tuple[bytes]]:
        return type(self), (self.content,)

    @cached_property
    def resegmenter(self) -> Resegmenter | None:
        """Draws other tokens for encoded text, for subword regularization; None if it cannot."""
        return self._vocabulary.make_resegmenter()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens around them. Reads spelled-out ones."""
        return self._vocabulary.encode(replace_lone_surrogates(text))

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text, with spelled-out special tokens encoded as ordinary characters."""
        return self._vocabulary.encode_plain(replace_lone_surrogates(text))

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        return encode_words_separately(words, self, "" if self._adds_space else " ")

    @cached_property
    def _adds_space(self) -> bool:
        """True if a space is added before each text."""
        return self._vocabulary.decode(self.encode("a") * 2) == "a a"

    def decode(self, ids: Iterable[int]) -> str:
        return self._vocabulary.decode([int(i) for i in ids if i not in self.specials.ids])


class SampledTokenizer:
    """A `Tokenizer` whose texts get tokens drawn at random; otherwise the given tokenizer.

    Args:
      tokenizer: a tokenizer with a `resegmenter`.
      rate: as `tokenizer.sampling`.
      rng: draws the tokens.
    """

    def __init__(self, tokenizer: Tokenizer, rate: float, rng: np.random.Generator):
        self._tokenizer = tokenizer
        self._rate = rate
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def resegment(self, ids: Iterable[int]) -> list[int]:
        """Token ids of the text of `ids`, drawn at random."""
        draw = resegmenter_of(self._tokenizer)
        assert draw
        return draw(ids, self._rate, self._rng)

    def encode(self, text: str) -> list[int]:
        return self.resegment(self._tokenizer.encode(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def encode_plain(self, text: str) -> list[int]:
        return self.resegment(encode_plain(self._tokenizer, text))

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        return [self.resegment(ids) for ids in self._tokenizer.encode_words(words)]


def resegmenter_of(tokenizer: Any) -> Resegmenter | None:
    """The `Resegmenter` of a tokenizer; None if its kind has one segmentation."""
    return getattr(tokenizer, "resegmenter", None)


class SpelledTokens:
    """Encodes a text that may spell tokens, of which it reads the longest: one may begin another.

    Args:
      ids: piece of each such token -> id.
      encode: encodes the parts between the tokens.
    """

    def __init__(self, ids: Mapping[str, int], encode: Callable[[str], list[int]]):
        self._ids = ids
        self._encode = encode
        pieces = sorted(ids, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, pieces))})")

    def __call__(self, text: str) -> list[int]:
        if not self._ids:
            return self._encode(text)
        tokens: list[int] = []
        for part in self._pattern.split(text):
            tokens += [self._ids[part]] if part in self._ids else self._encode(part)
        return tokens


def encode_plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of a text, with spelled-out special tokens encoded as ordinary characters."""
    encode: Callable[[str], list[int]] = getattr(tokenizer, "encode_plain", tokenizer.encode)
    return encode(text) if text else []


def encode_batch(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """`tokenizer.encode` of each text, all at once if the tokenizer can."""
    encode_all: Callable[[Sequence[str]], list[list[int]]] | None
    encode_all = getattr(tokenizer, "encode_batch", None)
    return encode_all(texts) if encode_all else [tokenizer.encode(text) for text in texts]


def special_token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Special tokens of a vocabulary, piece -> id, without unknown and unused ones."""
    specials = tokenizer.specials
    ids = sorted(specials.ids - {specials.unk, *specials.unused})
    return dict(zip(tokenizer.pieces(ids), ids, strict=True))


def encode_words_separately(
    words: Sequence[str], tokenizer: Tokenizer, separator: str
) -> list[list[int]]:
    """Implements `Tokenizer.encode_words`, with `separator` before all words but the first."""
    special = tokenizer.specials
    unknown = [special.eos if special.unk is None else special.unk]
    return [
        tokenizer.encode(separator + word if number else word) or unknown
        for number, word in enumerate(words)
    ]


def replace_lone_surrogates(text: str) -> str:
    """Replaces each half of a UTF-16 pair by U+FFFD. JSON may contain one, UTF-8 may not."""
    return _LONE_SURROGATES.sub("\ufffd", text)
