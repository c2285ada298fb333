"""Words as whole tokens; what is rare or was never seen, by its class (Petrov et al. 2006).

The class of a word is what its form tells of its part of speech: capitals, digits, a hyphen, its
ending, as the Berkeley parser has it, less whether it stands first in the sentence.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from transformer_jax.tokenization.config import TokenizerConfig
from transformer_jax.tokenization.specials import NUM_SPECIALS, PIECES
from transformer_jax.tokenization.symbols import Symbols

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
