# SPDX-License-Identifier: Apache-2.0
"""Constraint under which a search writes trees only, in the tokens of `trees`.

Axes: B batch, N = B * beams, W constraint tokens, V vocabulary.
"""

import dataclasses
import functools
import operator
from collections.abc import Collection
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from transformer_jax.tokenization import SymbolTokenizer
from transformer_jax.trees import CLOSE, OPEN, READ

SHORTEST = 3
"""Tokens of the flattest tree besides those of its words: the brackets of its root, and EOS."""


class TreeState(NamedTuple):
    """State of each hypothesis; int32 [N] unless stated otherwise.

    Attributes:
      depth: number of open constituents.
      waiting: number of words that are in no constituent yet; with a lookahead, number of
        constraint tokens not read yet, the end included.
      room: number of tokens that may still be written, EOS included.
      empty: bool [N], True if the innermost open constituent is empty.
      untagged: bool [N], True if the word just read has no tag yet.
      words: int32 [N, W], tokens that the model reads for the words, and for the end.
      total: number of these tokens.
    """

    depth: Array
    waiting: Array
    room: Array
    empty: Array
    untagged: Array
    words: Array
    total: Array


@dataclasses.dataclass(frozen=True)
class TreeConstraint:
    """A `Constraint` to trees over exactly the words of the sentence, complete within the limit.

    A constituent may open if words are left, and if there is room to add all words and to close all
    constituents. It may close if it is not empty; the root only after the last word. A tag adds the
    next word to the innermost constituent. With a lookahead the token `read` adds it instead: the
    search writes `read`, and the model reads the token of the word in its place. A sentence without
    words has an empty output.

    Attributes:
      read: token that reads the next word or the end; None: no lookahead.
    """

    opens: tuple[int, ...]
    tags: tuple[int, ...]
    close: int
    eos: int
    vocab_size: int
    read: int | None

    @classmethod
    def from_symbols(cls, symbols: SymbolTokenizer) -> "TreeConstraint":
        """Constraint for a vocabulary of tree tokens. ValueError if it has no brackets or tags."""
        ids = {symbol: symbols.id_of(symbol) for symbol in symbols.symbols}
        opens = tuple(i for symbol, i in ids.items() if symbol.startswith(OPEN))
        tags = tuple(i for symbol, i in ids.items() if not symbol.startswith((OPEN, CLOSE, READ)))
        if not (opens and tags and CLOSE in ids):
            raise ValueError("the vocabulary of trees has no tags, or no brackets with labels")
        return cls(
            opens=opens,
            tags=tags,
            close=ids[CLOSE],
            eos=symbols.specials.eos,
            vocab_size=symbols.vocab_size,
            read=ids.get(READ),
        )

    def begin(
        self, tokens: Int[Array, "B W"], counts: Int[Array, " B"], limits: Int[Array, " B"]
    ) -> TreeState:
        """Returns the state before the first token.

        Args:
          tokens: tokens that the model reads for the words of each sentence, and for its end;
            without a lookahead, any.
          limits: longest output of each sentence, EOS included: at least `SHORTEST`, and one for
            each tag and each word read.
        """
        zeros = jnp.zeros_like(counts)
        false = zeros.astype(bool)
        return TreeState(zeros, counts, limits, false, false, tokens, counts)

    def allowed(self, state: TreeState) -> Bool[Array, "N V"]:
        """Mask of the tokens that may come next."""
        depth, waiting, room, empty, untagged, _, total = state
        looks_ahead = self.read is not None
        at_start = looks_ahead & (waiting == total)  # the first word is read before the root opens
        inside = (depth > 0) & ~untagged
        some_wait = (waiting > 0) & ~untagged
        may_add = some_wait & (at_start | (depth > 0))
        tags = jnp.maximum(waiting - 1, 0) if looks_ahead else 0  # of words not yet read
        # After both brackets of the new constituent there must be room to end all of the tree.
        may_open = some_wait & ~at_start & (waiting + tags + depth + SHORTEST <= room)
        may_close = inside & ~empty & ((depth > 1) | (waiting == 0))
        may_end = (depth == 0) & (waiting == 0)
        may = {
            self.opens: may_open,
            self.tags: untagged if looks_ahead else may_add,
            (self.close,): may_close,
            (self.eos,): may_end,
        }
        if self.read is not None:
            may[(self.read,)] = may_add
        masks = [is_allowed[:, None] & self._mask(ids) for ids, is_allowed in may.items()]
        # No reduction over a stack: XLA folds that of the first step, slowly and with a warning.
        return functools.reduce(operator.or_, masks)

    def advance(
        self, state: TreeState, tokens: Int[Array, " N"]
    ) -> tuple[TreeState, Int[Array, " N"]]:
        """Returns the state after one more token of each hypothesis, and the tokens that the model
        reads."""
        opened, tagged = (jnp.asarray(self._mask(ids))[tokens] for ids in (self.opens, self.tags))
        closed = tokens == self.close
        reads = tokens == self.read
        added = tagged if self.read is None else reads & (state.waiting > 0)
        waiting = state.waiting - added
        after = TreeState(
            depth=state.depth + opened - closed,
            waiting=waiting,
            room=state.room - 1,
            empty=opened | (state.empty & ~(added | closed)),
            untagged=reads & (waiting > 0),
            words=state.words,
            total=state.total,
        )
        place = jnp.clip(state.total - state.waiting, 0, state.words.shape[1] - 1)
        word = jnp.take_along_axis(state.words, place[:, None], axis=1)[:, 0]
        return after, jnp.where(reads, word, tokens)

    def _mask(self, ids: Collection[int]) -> np.ndarray:
        return np.isin(np.arange(self.vocab_size), list(ids))
