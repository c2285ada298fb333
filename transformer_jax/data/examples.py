"""Examples of text, and sequences of them that read nothing before it is asked for."""

import bisect
import itertools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

Example = dict[str, str]
"""What a set holds: {"source", "target"} of translations, {"text"} of plain text, {"text", "label"}
or {"text", "pair", "label"} of labelled text, {"text", "tags"} of tagged words, a tag for each word
and one space between two, {"turns", "text"} of conversations, as `conversations.to_text` writes
them, and all that is said, {"context", "choices", "answer", "text"} of multiple choice."""

Corpus = Sequence[Example]
"""The examples of a set, or a part of them."""

Features = Mapping[str, np.ndarray]
"""What a model reads of an example: for each feature ("source" and "target", say) its tokens or
labels, int32 [n]."""


class RandomAccess[T](Sequence[T]):
    """A sequence that makes an item when it is asked for; a slice is a list of items."""

    @abstractmethod
    def item(self, index: int) -> T:
        """The item at a place from 0 to len(self) - 1."""

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self.item(i) for i in range(len(self))[index]]
        return self.item(index if 0 <= index < len(self) else range(len(self))[index])


@dataclass(frozen=True, repr=False)
class LinePairs(RandomAccess[Example]):
    """Line i of one side beside line i of the other.

    Attributes:
      sources, targets: equally many lines; any sequence of strings will do.
    """

    sources: Sequence[str]
    targets: Sequence[str]

    def __len__(self) -> int:
        return len(self.sources)

    def item(self, index: int) -> Example:
        return {"source": self.sources[index], "target": self.targets[index]}

    def __repr__(self) -> str:
        return f"LinePairs({len(self)} pairs)"


@dataclass(frozen=True, repr=False)
class Parsed[Item, Made](RandomAccess[Made]):
    """What each item of a sequence is parsed into, an example say, when it is asked for."""

    items: Sequence[Item]
    parse: Callable[[Item], Made]

    def __len__(self) -> int:
        return len(self.items)

    def item(self, index: int) -> Made:
        return self.parse(self.items[index])


@dataclass(frozen=True, repr=False)
class Selection(RandomAccess[Example]):
    """Some of the examples of a corpus.

    Attributes:
      examples: the corpus.
      places: int [N], the places in it of those selected.
    """

    examples: Corpus
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.places)

    def item(self, index: int) -> Example:
        return self.examples[int(self.places[index])]


@dataclass(frozen=True, repr=False)
class Corpora[Item](RandomAccess[Item]):
    """Several corpora, one behind the other.

    Attributes:
      parts: the corpora.
      weights: positive, how often training draws from each relative to the others; None: as often
        as it has examples, each example once an epoch.
    """

    parts: tuple[Sequence[Item], ...]
    weights: tuple[float, ...] | None = None

    @cached_property
    def starts(self) -> list[int]:
        """The place of each part's first example, and the number of all examples behind them."""
        return [0, *itertools.accumulate(map(len, self.parts))]

    def __len__(self) -> int:
        return self.starts[-1]

    def item(self, index: int) -> Item:
        part = bisect.bisect_right(self.starts, index) - 1
        return self.parts[part][index - self.starts[part]]

    def each[Made](self, make: Callable[[Sequence[Item]], Sequence[Made]]) -> "Corpora[Made]":
        """What is made of each corpus, with its weight."""
        return Corpora(tuple(map(make, self.parts)), self.weights)
