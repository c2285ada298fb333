"""The classes of a classification or tagging set, each a whole string."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from transformer_jax.errors import UserError
from transformer_jax.tokenization.config import TokenizerConfig
from transformer_jax.tokenization.specials import NUM_SPECIALS, OWN, PIECES, UNK

_SHOWN = 5


@dataclass(frozen=True)
class Labels:
    """Labels to ids, 0 and up, and back; immutable.

    Attributes:
      names: the labels, each once; a label's id is its place.

    Raises:
      ValueError: there is no name, or they are not strings that differ.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not all(isinstance(name, str) for name in self.names):
            raise ValueError("labels must be strings")
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError("labels must differ, and be at least one")

    @classmethod
    def from_json(cls, content: bytes) -> "Labels":
        """What `to_json` wrote.

        Raises:
          ValueError: it is something else.
        """
        try:
            names = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError("this is no list of labels") from error
        if not isinstance(names, list):
            raise ValueError("this is no list of labels")
        return cls(tuple(names))

    def to_json(self) -> bytes:
        """A JSON list of the names, one a line."""
        return (json.dumps(self.names, indent=0) + "\n").encode()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def vocab_size(self) -> int:
        """Number of labels."""
        return len(self.names)

    def encode(self, label: str) -> int:
        """The id of a label.

        Raises:
          UserError: it is none of them.
        """
        try:
            return self._ids[label]
        except KeyError:
            more = f", ... ({len(self)} in all)" if len(self) > _SHOWN else ""
            raise UserError(
                f"label {label!r} was never seen in training; "
                f"the labels are {', '.join(map(repr, self.names[:_SHOWN]))}{more}"
            ) from None

    def decode(self, label_id: int) -> str:
        """The label of an id."""
        return self.names[label_id]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}


# FOLDED tokenization.symbols: A vocabulary of whole symbols, which spaces separate: the tokens of
# a formal language.


class Symbols:
    """A `Tokenizer` in which each symbol is a token; what is none of them is unknown.

    Args:
      symbols: each once, behind the special tokens in this order.

    Raises:
      ValueError: there is none, or they are not texts that differ and hold no space.
    """

    specials = OWN

    def __init__(self, symbols: Iterable[str]):
        self.symbols = tuple(symbols)
        if not all(isinstance(one, str) and one and " " not in one for one in self.symbols):
            raise ValueError("symbols must be texts without spaces")
        if not self.symbols or len({*self.symbols, *PIECES}) < self.vocab_size:
            raise ValueError("symbols must differ, from special tokens too, and be at least one")

    @classmethod
    def from_json(cls, content: bytes) -> "Symbols":
        """What `to_json` wrote; ValueError where it is something else."""
        try:
            symbols = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError("this is no list of symbols") from error
        if not isinstance(symbols, list):
            raise ValueError("this is no list of symbols")
        return cls(symbols)

    def to_json(self) -> bytes:
        """A JSON list of the symbols, one a line."""
        return (json.dumps(self.symbols, indent=0) + "\n").encode()

    @property
    def vocab_size(self) -> int:
        """Number of token ids, the specials included."""
        return NUM_SPECIALS + len(self.symbols)

    def encode(self, text: str) -> list[int]:
        """The ids of the symbols that spaces separate, with nothing around them."""
        return [self.id_of(symbol) for symbol in text.split(" ") if symbol]

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The id of each word."""
        return [[self.id_of(word)] for word in words]

    def id_of(self, symbol: str) -> int:
        """The id of a symbol."""
        return self._ids.get(symbol, UNK)

    def decode(self, ids: Iterable[int]) -> str:
        """The symbols of all ids but special ones, with spaces between."""
        return " ".join(self.pieces(i for i in ids if i not in self.specials.ids))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each id as its symbol."""
        table = (*PIECES, *self.symbols)
        return [table[i] for i in ids]

    def starts_word(self, ids: Iterable[int]) -> list[bool]:
        """Each symbol is a word of its own."""
        return [True for _ in ids]

    def count_unknown(self, ids: Iterable[int]) -> int:
        """How many of the ids are UNK."""
        return sum(1 for i in ids if i == UNK)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols, NUM_SPECIALS)}


# FOLDED tokenization.word_classes: Words as whole tokens; what is rare or was never seen, by its
# class (Petrov et al. 2006). The class of a word is what its form tells of its part of speech:
# capitals, digits, a hyphen, its ending, as the Berkeley parser has it, less whether it stands
# first in the sentence.


UNKNOWN = "UNK"
"""Begins the name of each class."""

_ENDINGS = ("ed", "ing", "ion", "er", "est", "ly", "ity", "y", "al")
_NO_PLURAL = ("ss", "is", "us")


class ClassedWords(Symbols):
    """A `Tokenizer` of words: one that the vocabulary lacks gets the token of its class, or of the
    nearest class that it has."""

    def id_of(self, symbol: str) -> int:
        """The id of a word."""
        return super().id_of(self.name_of(symbol))

    def name_of(self, word: str) -> str:
        """The word itself or its class, whichever the vocabulary has; UNK where it has neither."""
        name = word if word in self._ids else word_class(word)
        while name not in self._ids and "-" in name:
            name = name.rpartition("-")[0]
        return name


def word_class(word: str) -> str:
    """The class of a word: UNK-LC-ing of "jogging", UNK-CAPS of "NASA", UNK-NUM of "1984"."""
    lowered = word.lower()
    capitals = sum(letter.isupper() or letter.istitle() for letter in word)
    digits, dash = any(map(str.isdigit, word)), "-" in word
    name = UNKNOWN
    if word[:1].isupper() or (capitals and not word[:1].isalpha()):
        name += "-CAPS"
    elif any(map(str.islower, word)):
        name += "-LC"
    name += "-NUM" * digits + "-DASH" * dash
    if lowered.endswith("s") and len(word) >= 3:
        return name + "-s" * (not lowered.endswith(_NO_PLURAL))
    if len(word) >= 5 and not dash and not (digits and capitals):
        return name + next((f"-{end}" for end in _ENDINGS if lowered.endswith(end)), "")
    return name


def train_word_classes(config: TokenizerConfig, texts: Sequence[str], name: str) -> bytes:
    """The vocabulary of `words_and_classes`; an entry's `TokenizerKind.train`."""
    words = (word for text in texts for word in text.strip("\n").split(" "))
    counts = Counter(word for word in words if word and word not in PIECES)
    return Symbols(words_and_classes(counts, config.vocab_size - NUM_SPECIALS)).to_json()


def words_and_classes(counts: Mapping[str, int], room: int) -> list[str]:
    """At most `room` names: the most frequent words, and the classes of all others; words that
    occur once are among these, so that classes are learned."""
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    classes = Counter[str]()
    while ordered and (counts[ordered[-1]] == 1 or len(ordered) + len(classes) > room):
        word = ordered.pop()
        classes[word_class(word)] += counts[word]
    more = Counter({name: count for name, count in classes.items() if name not in {*ordered}})
    return [*ordered, *sorted(name for name, _ in more.most_common(room - len(ordered)))]
