# SPDX-License-Identifier: Apache-2.0
"""Vocabularies of whole strings: class labels, symbols of a formal language, and words."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from transformer_jax.errors import UserError
from transformer_jax.summary import Summarized
from transformer_jax.tokenization.config import TokenizerConfig
from transformer_jax.tokenization.specials import (
    DEFAULT_SPECIALS,
    NUM_SPECIALS,
    SPECIAL_PIECES,
    UNK,
)
from transformer_jax.tokenization.tokenizer import ListedTokenizer

UNKNOWN_CLASS = "UNK"
"""Prefix of the names of all word classes, and the name of the most general one."""

_MAX_LABELS_SHOWN = 5
_ENDINGS = ("ed", "ing", "ion", "er", "est", "ly", "ity", "y", "al")
_NOT_PLURAL = ("ss", "is", "us")


@dataclass(frozen=True, repr=False)
class Labels(Summarized):
    """The classes of a classification or tagging task: label to id and back.

    Attributes:
      names: distinct labels. The id of a label is its index.

    Raises:
      ValueError: `names` is empty, or has duplicates.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError("labels must differ, and be at least one")

    @classmethod
    def from_json(cls, content: bytes) -> "Labels":
        """Reads the output of `to_json`."""
        return cls(tuple(json.loads(content)))

    def to_json(self) -> bytes:
        """JSON list of the names, one per line."""
        return _write_list(self.names)

    def summary(self) -> Mapping[str, object]:
        """The number of labels, and their names."""
        return {"labels": len(self.names), "names": ", ".join(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    @property
    def vocab_size(self) -> int:
        """Number of labels."""
        return len(self.names)

    def encode(self, label: str) -> int:
        """Id of a label. Raises UserError if it is unknown."""
        try:
            return self._ids[label]
        except KeyError:
            more = f", ... ({len(self)} in all)" if len(self) > _MAX_LABELS_SHOWN else ""
            raise UserError(
                f"label {label!r} was never seen in training; "
                f"the labels are {', '.join(map(repr, self.names[:_MAX_LABELS_SHOWN]))}{more}"
            ) from None

    def decode(self, label_id: int) -> str:
        """Label of an id."""
        return self.names[label_id]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}


class SymbolTokenizer(ListedTokenizer):
    """A `Tokenizer` of space-separated symbols: each is one token; any other string is unknown.

    Args:
      symbols: distinct symbols, in the order of their ids, which follow the special tokens.

    Raises:
      ValueError: there are none, or some are duplicates or special tokens.
    """

    specials = DEFAULT_SPECIALS

    def __init__(self, symbols: Iterable[str]):
        self.symbols = tuple(symbols)
        self._pieces = (*SPECIAL_PIECES, *self.symbols)
        self._is_word_start = [True] * self.vocab_size
        if not self.symbols or len({*self._pieces}) < self.vocab_size:
            raise ValueError("symbols must differ, from special tokens too, and be at least one")

    @classmethod
    def from_json(cls, content: bytes) -> "SymbolTokenizer":
        """Reads the output of `to_json`."""
        return cls(json.loads(content))

    def to_json(self) -> bytes:
        """JSON list of the symbols, one per line."""
        return _write_list(self.symbols)

    def encode(self, text: str) -> list[int]:
        return [self.id_of(symbol) for symbol in text.split(" ") if symbol]

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        return [[self.id_of(word)] for word in words]

    def id_of(self, symbol: str) -> int:
        """Id of a symbol."""
        return self._ids.get(symbol, UNK)

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.pieces(i for i in ids if i not in self.specials.ids))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols, NUM_SPECIALS)}


class WordClassTokenizer(SymbolTokenizer):
    """A `Tokenizer` of words that replaces rare and unknown words by classes (Petrov et al. 2006).

    A word's class is a clue to its part of speech from its spelling alone: capitals, digits, a
    hyphen, the ending. These are the classes of the Berkeley parser, without its feature for the
    first word of a sentence. A word whose class is not in the vocabulary gets a more general class.
    """

    def id_of(self, symbol: str) -> int:
        """Id of a word, or of its class."""
        return super().id_of(self.name_of(symbol))

    def name_of(self, word: str) -> str:
        """The word if the vocabulary has it, else its most specific class in the vocabulary."""
        name = word if word in self._ids else word_class(word)
        while name not in self._ids and "-" in name:
            name = name.rpartition("-")[0]
        return name


def word_class(word: str) -> str:
    """Class of a word: UNK-LC-ing of "jogging", UNK-CAPS of "NASA", UNK-NUM of "1984"."""
    lowered = word.lower()
    capitals = sum(letter.isupper() or letter.istitle() for letter in word)
    has_digit = any(map(str.isdigit, word))
    has_dash = "-" in word
    name = UNKNOWN_CLASS
    if word[:1].isupper() or (capitals and not word[:1].isalpha()):
        name += "-CAPS"
    elif any(map(str.islower, word)):
        name += "-LC"
    if has_digit:
        name += "-NUM"
    if has_dash:
        name += "-DASH"
    if lowered.endswith("s") and len(word) >= 3:
        return name if lowered.endswith(_NOT_PLURAL) else f"{name}-s"
    if len(word) >= 5 and not has_dash and not (has_digit and capitals):
        for ending in _ENDINGS:
            if lowered.endswith(ending):
                return f"{name}-{ending}"
    return name


def train_word_classes(config: TokenizerConfig, texts: Sequence[str], name: str) -> bytes:
    """Chooses the words and classes of a vocabulary; see `TokenizerKind.train`."""
    words = (word for text in texts for word in text.strip("\n").split(" "))
    counts = Counter(word for word in words if word and word not in SPECIAL_PIECES)
    symbols = choose_words_and_classes(counts, config.vocab_size - NUM_SPECIALS)
    return SymbolTokenizer(symbols).to_json()


def choose_words_and_classes(counts: Mapping[str, int], limit: int) -> list[str]:
    """The most frequent words, then the classes of all other words; at most `limit` in all.

    Words that occur once are always replaced by their class, so that classes occur in training.
    """
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    classes = Counter[str]()
    while ordered and (counts[ordered[-1]] == 1 or len(ordered) + len(classes) > limit):
        word = ordered.pop()
        classes[word_class(word)] += counts[word]
    added = Counter({name: count for name, count in classes.items() if name not in {*ordered}})
    return [*ordered, *sorted(name for name, _ in added.most_common(limit - len(ordered)))]


def _write_list(names: Sequence[str]) -> bytes:
    return (json.dumps(names, indent=0) + "\n").encode()
