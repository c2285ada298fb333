# SPDX-License-Identifier: Apache-2.0
"""Examples of text, and lazy sequences of them: an item is read when it is requested."""

import bisect
import itertools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

Example = dict[str, str]
"""An example of a data set, by kind:

- pairs (translation, parsing): {"source", "target"}
- plain text: {"text"}
- labeled text: {"text", "label"} or {"text", "pair", "label"}
- tagged words: {"text", "tags"}, word i of `text.split(" ")` has tag i of `tags.split(" ")`
- conversations: {"turns", "text"}, JSON of the turns (`conversation_to_json`), and their contents
- preferences: {"turns", "chosen", "rejected", "text"}
- multiple choice: {"context", "choices", "answer", "text"}
"""

Corpus = Sequence[Example]
"""Examples of a data set, or of a part of it."""

Features = Mapping[str, np.ndarray]
"""Input of a model for one example: tokens or labels of each feature (such as "source" and
"target"), int32 [n]."""


class RandomAccess[T](Sequence[T]):
    """Sequence whose items are made when they are requested; a slice is a list."""

    @abstractmethod
    def item(self, index: int) -> T:
        """Item at an index from 0 to len(self) - 1."""

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
    """Pairs of line i of the sources and line i of the targets.

    Attributes:
      sources, targets: sequences of the same length.
    """

    sources: Sequence[str]
    targets: Sequence[str]

    def __len__(self) -> int:
        return len(self.sources)

    def item(self, index: int) -> Example:
        return {"source": self.sources[index], "target": self.targets[index]}


@dataclass(frozen=True, repr=False)
class Parsed[Item, Made](RandomAccess[Made]):
    """Items of a sequence, each converted with `parse` when it is requested."""

    items: Sequence[Item]
    parse: Callable[[Item], Made]

    def __len__(self) -> int:
        return len(self.items)

    def item(self, index: int) -> Made:
        return self.parse(self.items[index])


@dataclass(frozen=True, repr=False)
class Selection[Item](RandomAccess[Item]):
    """Selected items of a sequence.

    Attributes:
      examples: the sequence.
      indices: int [N], indices of the selected items.
    """

    examples: Sequence[Item]
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    def item(self, index: int) -> Item:
        return self.examples[int(self.indices[index])]


@dataclass(frozen=True, repr=False)
class Corpora[Item](RandomAccess[Item]):
    """Concatenated corpora.

    Attributes:
      parts: the corpora.
      weights: relative frequencies, positive, with which training draws from the corpora; None:
        each example once per epoch.
    """

    parts: tuple[Sequence[Item], ...]
    weights: tuple[float, ...] | None = None

    @cached_property
    def starts(self) -> list[int]:
        """Index of the first example of each part, followed by the number of all examples."""
        return [0, *itertools.accumulate(map(len, self.parts))]

    def __len__(self) -> int:
        return self.starts[-1]

    def item(self, index: int) -> Item:
        part = bisect.bisect_right(self.starts, index) - 1
        return self.parts[part][index - self.starts[part]]


def map_corpora[Item, Made](
    examples: Sequence[Item], make: Callable[[Sequence[Item]], Sequence[Made]]
) -> Sequence[Made]:
    """`make` of the examples, or of each corpus of some with weights, which it would lose."""
    if isinstance(examples, Corpora) and examples.weights:
        return Corpora(tuple(map(make, examples.parts)), examples.weights)
    return make(examples)
