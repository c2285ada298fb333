"""A text as one stream of tokens, and the windows of it that a language model is shown.

In each window the target is the input shifted by one token. N tokens of a stream, D documents.
"""

import dataclasses
import errno
import functools
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tqdm import tqdm

from transformer_jax.data.batches.order import EpochOrder, PlacedRng, Preprocess
from transformer_jax.data.examples import Features, RandomAccess
from transformer_jax.data.files.blocks import TextBlocks
from transformer_jax.errors import UserError

_BAR_AFTER_SECONDS = 2  # what is done sooner needs no progress bar


@dataclass(frozen=True)
class TokenStream:
    """Documents one after another, each behind a first token and before an end.

    Attributes:
      tokens: int32 [N].
      starts: int64 [D], the place of the token in front of each document.
      ends: int64 [D], the place of the token behind it; of the next document's start where one
        token is both.
    """

    tokens: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def document(self, index: int) -> np.ndarray:
        """The tokens of one document, int32 [n], without those around it."""
        return self.tokens[self.starts[index] + 1 : self.ends[index]]


@dataclass(frozen=True)
class Windows(RandomAccess[Features]):
    """Windows of a stream, across the ends of documents.

    Item i is {"input": tokens[i * stride : i * stride + n], "target": the same, shifted by one},
    int32 [n]; n = length, in the last one perhaps less. The last window holds the last token. With
    stride = length every token but the first is a target exactly once; with stride = 1 there are
    windows at all places and all are full, if the stream is longer than a window.

    Attributes:
      tokens: int32 [N].
      length: tokens of a full window.
      stride: from the start of a window to that of the next, at most `length`.

    Raises:
      UserError: there is no text: fewer than two tokens.
      ValueError: `stride` is not from 1 to `length`.
    """

    tokens: np.ndarray
    length: int
    stride: int

    def __post_init__(self) -> None:
        if not 1 <= self.stride <= self.length:
            raise ValueError(f"stride must be from 1 to {self.length}, not {self.stride}")
        _require_text(self.tokens)

    def __len__(self) -> int:
        behind_first = max(0, len(self.tokens) - 1 - self.length)  # targets behind its last one
        return 1 - (-behind_first // self.stride)

    def item(self, index: int) -> Features:
        start = index * self.stride
        return _window(self.tokens, start, min(start + self.length, len(self.tokens) - 1))


@dataclass(frozen=True)
class Pieces(RandomAccess[Features]):
    """Documents apart, cut where they are longer than a window.

    Item i is {"input": int32 [n], "target": the same, shifted by one}, n <= length. The first input
    of a document is the token in front of it, its last target the one behind it: each token of a
    document and the one that ends it is a target exactly once.

    Attributes:
      stream: the documents.
      length: tokens of a full window, at least 1.

    Raises:
      UserError: there is no text.
    """

    stream: TokenStream
    length: int

    def __post_init__(self) -> None:
        _require_text(self.stream.tokens)

    @cached_property
    def places(self) -> np.ndarray:
        """Where the inputs of each piece begin and end, int64 [number of pieces, 2]."""
        starts, ends = self.stream.starts, self.stream.ends
        counts = -((starts - ends) // self.length)  # pieces of each document
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        first = np.repeat(starts, counts) + number * self.length
        return np.stack([first, np.minimum(first + self.length, np.repeat(ends, counts))], axis=1)

    def __len__(self) -> int:
        return len(self.places)

    def item(self, index: int) -> Features:
        return _window(self.stream.tokens, *self.places[index])


def token_stream(documents: Iterable[Sequence[int]], first: int, end: int) -> TokenStream:
    """Writes documents as one stream to a nameless temporary file, mapped into memory.

    No more than one document is in memory at a time, besides 8 bytes for each.

    Args:
      documents: the tokens of each.
      first: the token in front of each.
      end: the token behind each; where it is `first`, a single one stands between two documents.

    Raises:
      UserError: there is no text: not one document has a token; or the disk is full.
    """
    try:
        return _stored(documents, first, end)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"cannot store the tokens in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR "
            "to a folder with room for 4 bytes a token"
        ) from error


def separator(first: int, end: int) -> np.ndarray:
    """What stands between two documents; arguments as of `token_stream`."""
    return np.array([end] if first == end else [end, first], np.int32)


def laid_out(tokens: np.ndarray, sizes: np.ndarray, separator_size: int) -> TokenStream:
    """A stream of documents of these sizes.

    Args:
      tokens: int32, a first token, then each document with a separator behind it.
      sizes: int64 [D], tokens of each document.
      separator_size: tokens of a separator.

    Raises:
      UserError: no document has a token.
      ValueError: there are not as many tokens as the sizes say.
    """
    if not np.any(sizes):
        raise _no_text()
    behind = np.cumsum(sizes + separator_size)
    if len(tokens) != 1 + behind[-1]:
        raise ValueError(f"{len(tokens)} tokens are not those of {len(sizes)} documents")
    starts = behind - sizes - separator_size
    ends = starts + sizes + 1
    return TokenStream(tokens[: ends[-1] + 1], starts, ends)


def _stored(documents: Iterable[Sequence[int]], first: int, end: int) -> TokenStream:
    sizes, between = array("q"), separator(first, end)
    with tempfile.TemporaryFile() as file:
        file.write(np.array([first], np.int32))
        for tokens in tqdm(documents, "tokens", unit="doc", delay=_BAR_AFTER_SECONDS, disable=None):
            sizes.append(len(tokens))
            file.write(np.asarray(tokens, np.int32))
            file.write(between)
        file.flush()
        stored = np.asarray(np.memmap(file, np.int32, "r"))
    return laid_out(stored, np.array(sizes, np.int64), len(between))


def _window(tokens: np.ndarray, start: int, stop: int) -> Features:
    return {"input": tokens[start:stop], "target": tokens[start + 1 : stop + 1]}


def _require_text(tokens: np.ndarray) -> None:
    if len(tokens) < 2:
        raise _no_text()


def _no_text() -> UserError:
    return UserError("the text is empty: there is no token to predict")


# FOLDED data.batches.streamed: Windows of text in blocks, which follow each other without end:
# nothing but the blocks at hand is in memory. A place in such a sequence is the number of a block
# and that of a window in it, so that training can go on anywhere without reading what stands
# before.


_WINDOWS_BITS = 32
"""Of a place, those that number the windows of a block."""


@dataclasses.dataclass(frozen=True, repr=False)
class StreamedText(RandomAccess[Sequence[Features]]):
    """Blocks of text, each cut into windows when it is asked for.

    Attributes:
      blocks: of documents.
      cut: documents -> their windows, at least one.
    """

    blocks: TextBlocks
    cut: Callable[[Sequence[str]], Sequence[Features]]

    def __len__(self) -> int:
        return len(self.blocks)

    def item(self, index: int) -> Sequence[Features]:
        return self.cut(self.blocks.documents(index))


class StreamedFeatures(Sequence[Features]):
    """The windows of all blocks, each once an epoch: the blocks in a new order each time, and the
    windows of each in a new order. A sequence of places with gaps: `after` leads from one to the
    next.

    Args:
      text: the blocks.
      preprocess: its `rng` depends on `seed` and the place alone.
      seed: decides the orders.
      hand, hands: of the endless sequence of blocks, dealt to so many hands in turn, this has those
        of one.
    """

    def __init__(
        self,
        text: StreamedText,
        preprocess: Preprocess[Any],
        seed: int,
        hand: int = 0,
        hands: int = 1,
    ):
        self._text, self._preprocess, self._seed = text, preprocess, seed
        self._hand, self._hands = hand, hands
        self._order = EpochOrder(0, len(text), seed)
        self._at_hand: tuple[int, Sequence[Features], np.ndarray] | None = None

    def dealt(self, hand: int, hands: int) -> "StreamedFeatures":
        """As `Prepared.dealt`, of the whole sequence."""
        return StreamedFeatures(self._text, self._preprocess, self._seed, hand, hands)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, place: Any) -> Any:
        ordinal, number = divmod(place, 1 << _WINDOWS_BITS)
        windows, order = self._block(ordinal)
        # Unlike places, which the hands have in common, these are each hand's own.
        drawn = (ordinal * self._hands + self._hand << _WINDOWS_BITS) + number
        return self._preprocess(windows[int(order[number])], self._rng.at(drawn))

    def after(self, place: int) -> int:
        """The place that follows."""
        ordinal, number = divmod(place, 1 << _WINDOWS_BITS)
        windows, _ = self._block(ordinal)
        return place + 1 if number + 1 < len(windows) else ordinal + 1 << _WINDOWS_BITS

    def _block(self, ordinal: int) -> tuple[Sequence[Features], np.ndarray]:
        """The windows of this hand's block of that number, and the order that they come in."""
        if self._at_hand is None or self._at_hand[0] != ordinal:
            number = ordinal * self._hands + self._hand
            windows = self._text[self._order[number]]
            order = np.random.default_rng([self._seed, number, 1]).permutation(len(windows))
            self._at_hand = ordinal, windows, order
        return self._at_hand[1:]

    @functools.cached_property
    def _rng(self) -> PlacedRng:
        return PlacedRng(self._seed)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is made anew, where it is needed."""
        kept = {name: value for name, value in vars(self).items() if name != "_rng"}
        return kept | {"_at_hand": None}
