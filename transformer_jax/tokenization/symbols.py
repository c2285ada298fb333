"""A vocabulary of whole symbols, which spaces separate: the tokens of a formal language."""

import json
from collections.abc import Iterable, Sequence
from functools import cached_property

from transformer_jax.tokenization.specials import NUM_SPECIALS, OWN, PIECES, UNK


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
