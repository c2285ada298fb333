# SPDX-License-Identifier: Apache-2.0
"""Running text as a stream of tokens, and the windows of it that are examples of language models.

In each window the target is the input shifted by one token. N tokens of a stream, D documents.
"""

import errno
import itertools
import tempfile
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from transformer_jax.data.examples import Corpora, Features, RandomAccess
from transformer_jax.errors import UserError

type Indices = int | np.ndarray

BAR_AFTER_SECONDS = 2
"""Delay of the progress bar of tokenization, so that short work shows none."""


@dataclass(frozen=True)
class TokenStream:
    """Concatenated documents, each after a first token and before an end token.

    Attributes:
      tokens: int32 [N].
      starts: int64 [D], index of the first token of each document.
      ends: int64 [D], index of the end token of each document; also the next document's start if
        both are the same token.
    """

    tokens: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def from_sizes(
        cls, tokens: np.ndarray, sizes: np.ndarray, separator_size: int
    ) -> "TokenStream":
        """Locates the documents in a stream.

        Args:
          tokens: int32, a first token, then each document and a separator after it.
          sizes: int64 [D], tokens of each document.
          separator_size: tokens of a separator.

        Raises:
          UserError: all documents are empty.
        """
        if not np.any(sizes):
            raise UserError("the text is empty: there is no token to predict")
        next_starts = np.cumsum(sizes + separator_size)
        starts = next_starts - sizes - separator_size
        ends = starts + sizes + 1
        return cls(tokens[: ends[-1] + 1], starts, ends)

    def first(self, count: int) -> "TokenStream":
        """The stream of the first `count` tokens after the very first one; the last document may be
        cut, and its last token then ends it.

        Raises:
          UserError: there are fewer.
        """
        if count > len(self.tokens) - 1:
            raise UserError(
                f"data.num_train_tokens is {count}, but the training text has "
                f"{len(self.tokens) - 1} tokens, those between documents included"
            )
        starts = self.starts[self.starts < count]
        return TokenStream(
            self.tokens[: count + 1], starts, np.minimum(self.ends[: len(starts)], count)
        )

    def blocks(self, size: int, whole_documents: bool) -> list["TokenStream"]:
        """Parts of about `size` tokens, of whole documents or of any tokens.

        Parts of any tokens list no documents, and the last token of each is the first of the next.
        """
        empty = np.array([], np.int64)
        if not whole_documents:
            starts = range(0, len(self.tokens) - 1, size)
            return [TokenStream(self.tokens[i : i + size + 1], empty, empty) for i in starts]
        # Documents that start in the same `size` tokens are a part, from one of `firsts` on.
        _, firsts = np.unique(self.starts // size, return_index=True)
        return [
            TokenStream(
                self.tokens[self.starts[i] : self.ends[j - 1] + 1],
                self.starts[i:j] - self.starts[i],
                self.ends[i:j] - self.starts[i],
            )
            for i, j in itertools.pairwise([*firsts.tolist(), len(self.starts)])
        ]

    def resegmented(self, resegment: Callable[[list[int]], Sequence[int]]) -> "TokenStream":
        """The stream with other tokens.

        Args:
          resegment: tokens -> others of the same text; special tokens stay.
        """
        # Parts begin with a first or an end token, so that no new token joins two documents.
        borders = np.unique(np.concatenate([self.starts, self.ends]))
        parts = np.split(self.tokens, borders)
        parts = [np.array(resegment(part.tolist()), np.int32) for part in parts]
        new_borders = np.cumsum([len(part) for part in parts])  # part i ends at border i
        starts = new_borders[np.searchsorted(borders, self.starts)]
        ends = new_borders[np.searchsorted(borders, self.ends)]
        return TokenStream(np.concatenate(parts), starts, ends)

    def document_ranges(self, indices: Indices) -> tuple[Any, Any]:
        """Starts and stops of these documents without their first and end token, int64 [n] each."""
        return self.starts[indices] + 1, self.ends[indices]


@dataclass(frozen=True)
class TokenSlices:
    """One feature of all examples of a source: slices of an array, with special tokens around each.

    Attributes:
      stream: the array, [N], or an object with its method `take`.
      ranges: indices of examples -> starts and stops of their slices, int64 [n] each.
      shift: added to starts and stops.
      head, tail: tokens before and after each slice.
    """

    stream: Any
    ranges: Callable[[np.ndarray], tuple[Any, Any]]
    shift: int = 0
    head: Sequence[int] = ()
    tail: Sequence[int] = ()

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Tokens of these examples, int64 [n]."""
        starts, stops = self.ranges(indices)
        sizes: np.ndarray = stops - starts + len(self.head) + len(self.tail)
        return sizes

    def tokens(self, indices: np.ndarray) -> np.ndarray:
        """These examples, one after another."""
        sizes = self.sizes(indices)
        ends = np.cumsum(sizes)
        starts, _ = self.ranges(indices)
        places = np.repeat(starts + self.shift - len(self.head) - (ends - sizes), sizes)
        places += np.arange(len(places))
        # Places beside the first and last slice hold special tokens, which are set below.
        tokens: np.ndarray = self.stream.take(places, mode="clip")
        for i, token in enumerate(self.head):
            tokens[ends - sizes + i] = token
        for i, token in enumerate(self.tail, start=-len(self.tail)):
            tokens[ends + i] = token
        return tokens


@dataclass(frozen=True)
class CorporaSlices:
    """One feature of all examples of `Corpora`; as `TokenSlices`.

    Attributes:
      parts: the slices of each part.
      starts: index of the first example of each part.
    """

    parts: Sequence[TokenSlices]
    starts: Sequence[int]

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        sizes = np.empty(len(indices), np.int64)
        for part, is_inside, inside in self._by_part(indices):
            sizes[is_inside] = part.sizes(inside)
        return sizes

    def tokens(self, indices: np.ndarray) -> np.ndarray:
        sizes = self.sizes(indices)
        tokens = np.empty(sizes.sum(), np.int32)
        for part, is_inside, inside in self._by_part(indices):
            tokens[np.repeat(is_inside, sizes)] = part.tokens(inside)
        return tokens

    def _by_part(self, indices: np.ndarray) -> Iterator[tuple[TokenSlices, np.ndarray, np.ndarray]]:
        """Each part that has some of the examples: which they are, and their indices in it."""
        numbers = np.searchsorted(self.starts, indices, side="right") - 1
        for number in np.unique(numbers).tolist():
            is_inside = numbers == number
            yield self.parts[number], is_inside, indices[is_inside] - self.starts[number]


type Slices = Mapping[str, TokenSlices | CorporaSlices]
"""All features of a source, by name."""


def find_slices(
    items: Sequence[Any], slices_of: Callable[[Sequence[Any]], Mapping[str, TokenSlices] | None]
) -> Slices | None:
    """Slices of items or of the parts of `Corpora`; None if there are none for one part.

    Args:
      slices_of: items that are no `Corpora` -> their slices.
    """
    if not isinstance(items, Corpora):
        return slices_of(items)
    parts = list(filter(None, map(slices_of, items.parts)))
    if len(parts) < len(items.parts):
        return None
    return {
        feature: CorporaSlices([part[feature] for part in parts], items.starts[:-1])
        for feature in parts[0]
    }


class TokenWindows(RandomAccess[Features]):
    """Windows of tokens, {"input": int32 [n], "target": the same, shifted by one}.

    Attributes:
      tokens: int32 [N].
    """

    tokens: np.ndarray

    @abstractmethod
    def ranges(self, indices: Indices) -> tuple[Any, Any]:
        """Starts and stops of the inputs of these windows, int64 [n] each."""

    def item(self, index: int) -> Features:
        start, stop = self.ranges(index)
        return {"input": self.tokens[start:stop], "target": self.tokens[start + 1 : stop + 1]}

    @property
    def slices(self) -> dict[str, TokenSlices]:
        """The features of all windows."""
        return {
            "input": TokenSlices(self.tokens, self.ranges),
            "target": TokenSlices(self.tokens, self.ranges, shift=1),
        }


@dataclass(frozen=True)
class Windows(TokenWindows):
    """Windows of a stream, across the ends of documents.

    The input of window i is tokens[i * stride : i * stride + n]; n = length, possibly less in the
    last window, which ends with the last token. With stride = length every token except the first
    is a target exactly once. With stride = 1 windows start at all indices, and all are full if the
    stream is longer than a window.

    Attributes:
      tokens: int32 [N], at least two.
      length: tokens of a full window.
      stride: distance of the starts of two windows, at most `length`.
    """

    tokens: np.ndarray
    length: int
    stride: int

    def __len__(self) -> int:
        after_first = max(0, len(self.tokens) - 1 - self.length)  # targets after the first window
        return 1 - (-after_first // self.stride)  # rounded up

    def ranges(self, indices: Indices) -> tuple[Any, Any]:
        starts = indices * self.stride
        return starts, np.minimum(starts + self.length, len(self.tokens) - 1)


class DocumentPieces(TokenWindows):
    """Windows of single documents: a document that is longer than a window is cut into pieces.

    The first input of a document is its first token, its last target is its end token: each token
    of a document and its end token are targets exactly once.

    Args:
      stream: the documents.
      length: tokens of a full window, at least 1.
    """

    def __init__(self, stream: TokenStream, length: int):
        self.tokens = stream.tokens
        counts = -((stream.starts - stream.ends) // length)  # pieces of each document, rounded up
        # Number of each piece in its document.
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        self._starts = np.repeat(stream.starts, counts) + number * length
        self._stops = np.minimum(self._starts + length, np.repeat(stream.ends, counts))

    def __len__(self) -> int:
        return len(self._starts)

    def ranges(self, indices: Indices) -> tuple[Any, Any]:
        return self._starts[indices], self._stops[indices]


def store_token_stream(documents: Iterable[Sequence[int]], first: int, end: int) -> TokenStream:
    """Writes documents as one stream to an unnamed temporary file, mapped into memory.

    One document at a time is in memory, and 8 bytes for each.

    Args:
      documents: the tokens of each.
      first: token before each document.
      end: token after each document; if it equals `first`, one token separates two documents.

    Raises:
      UserError: there is no text (all documents are empty), or the disk is full.
    """
    sizes = array("q")
    separator = document_separator(first, end)
    progress = tqdm(documents, "tokens", unit="doc", delay=BAR_AFTER_SECONDS, disable=None)
    try:
        with tempfile.TemporaryFile() as file:
            file.write(np.array([first], np.int32))
            for tokens in progress:
                sizes.append(len(tokens))
                file.write(np.asarray(tokens, np.int32))
                file.write(separator)
            file.flush()
            stored = np.asarray(np.memmap(file, np.int32, "r"))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"cannot store the tokens in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR "
            "to a folder with room for 4 bytes a token"
        ) from error
    return TokenStream.from_sizes(stored, np.array(sizes, np.int64), len(separator))


def document_separator(first: int, end: int) -> np.ndarray:
    """Tokens between two documents; arguments as for `store_token_stream`."""
    return np.array([end] if first == end else [end, first], np.int32)
