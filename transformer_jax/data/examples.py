"""Sequences of examples made of others: random access, and nothing is read before it is asked for.

An example is {"source": str, "target": str} of a translation set, {"text": str} of plain text,
{"text": str, "label": str} or {"text": str, "pair": str, "label": str} of a labelled set,
{"text": str, "tags": str} of a tagged one: words, and a tag for each, with one space between two. A
window of a text that is tokens already is {"input": int32 [n], "target": int32 [n]}.
"""

import bisect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Example = dict[str, str | np.ndarray]


@dataclass(frozen=True, repr=False)
class LinePairs(Sequence):
    """Line i of one side beside line i of the other.

    Attributes:
      sources, targets: equally many lines; any sequence of strings will do.
    """

    sources: Sequence[str]
    targets: Sequence[str]

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> Example:
        return {"source": self.sources[index], "target": self.targets[index]}

    def __repr__(self) -> str:
        return f"LinePairs({len(self)} pairs)"


@dataclass(frozen=True, repr=False)
class Parsed(Sequence):
    """Each item of a sequence, made into an example when it is asked for."""

    items: Sequence[Any]
    parse: Callable[[Any], Example]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Example:
        return self.parse(self.items[range(len(self))[index]])


@dataclass(frozen=True, repr=False)
class Selection(Sequence):
    """Some of the examples of another sequence.

    Attributes:
      examples: the sequence.
      places: int [N], where in it they stand.
    """

    examples: Sequence[Example]
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Example:
        return self.examples[int(self.places[index])]


@dataclass(frozen=True, repr=False)
class Corpora(Sequence):
    """Several corpora, one behind the other.

    Attributes:
      parts: the corpora.
      weights: positive, how often training draws from each relative to the others; None: as often
        as it has examples, each example once an epoch.
    """

    parts: tuple[Sequence[Example], ...]
    weights: tuple[float, ...] | None = None

    @cached_property
    def starts(self) -> list[int]:
        """The place of each part's first example, and the number of examples behind them."""
        return [0, *itertools.accumulate(map(len, self.parts))]

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, index: int) -> Example:
        index = range(len(self))[index]
        part = bisect.bisect_right(self.starts, index) - 1
        return self.parts[part][index - self.starts[part]]
