"""What every tokenizer can do, whichever library it is of."""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, runtime_checkable

from transformer_jax.tokenization.specials import SpecialTokens


class Tokenizer(Protocol):
    """Text to token ids and back. Immutable; pickles whole, so that data workers can hold it."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids, the specials included."""

    @property
    def specials(self) -> SpecialTokens:
        """The ids that stand for no text."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with nothing around it."""

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word by itself, at least one: an unknown word's where it would have none.

        Where white space is text, each word but the first is encoded with a space before it.
        """

    def decode(self, ids: Iterable[int]) -> str:
        """The text of all ids; special tokens, unknown included, leave nothing in it."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each id as its vocabulary entry, for people to read."""

    def starts_word(self, ids: Iterable[int]) -> list[bool]:
        """Whether each id begins a word; specials do, and what stands first or follows one does.

        White space belongs to the word after it.
        """

    def count_unknown(self, ids: Iterable[int]) -> int:
        """How many of the ids stand for unknown text."""


@runtime_checkable
class ReadsSpecialTokens(Protocol):
    """A tokenizer whose `encode` reads special tokens that are written out in a text."""

    def encode_plain(self, text: str) -> list[int]:
        """The ids of a text in which nothing is a special token."""


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text in which nothing is a special token, whatever it looks like."""
    if not text:
        return []
    if isinstance(tokenizer, ReadsSpecialTokens):
        return tokenizer.encode_plain(text)
    return tokenizer.encode(text)


def special_pieces(tokenizer: Tokenizer) -> dict[str, int]:
    """How the vocabulary writes its special tokens, and their ids."""
    specials = tokenizer.specials
    ids = sorted(specials.ids - {specials.unk, *specials.unused})
    return dict(zip(tokenizer.pieces(ids), ids, strict=True))


def encode_each(words: Sequence[str], tokenizer: Tokenizer, separator: str) -> list[list[int]]:
    """`Tokenizer.encode_words`, with a text that stands between any two words."""
    special = tokenizer.specials
    none = [special.eos if special.unk is None else special.unk]
    return [
        tokenizer.encode(separator + word if number else word) or none
        for number, word in enumerate(words)
    ]


def word_starts(ids: Iterable[int], begins: Sequence[bool], special: Collection[int]) -> list[bool]:
    """`Tokenizer.starts_word`, where begins[i] says whether the piece of id i is written as a
    word's first."""
    starts, after_special = [], True
    for i in ids:
        is_special = i in special
        starts.append(is_special or after_special or begins[i])
        after_special = is_special
    return starts


# FOLDED tokenization.characters: The one kind of text that no tokenizer takes.


_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


def well_formed(text: str) -> str:
    """The text with U+FFFD for each half of a UTF-16 pair: JSON can hold one, UTF-8 cannot."""
    return _LONE_SURROGATES.sub("\ufffd", text)
