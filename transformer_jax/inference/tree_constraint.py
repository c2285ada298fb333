"""The constraint under which a search writes nothing but trees, in the tokens of `trees`.

Axes: B batch, N = B * beams, W words given, V vocabulary.
"""

import dataclasses
from collections.abc import Collection
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from transformer_jax.tokenization import SymbolTokenizer
from transformer_jax.trees import CLOSE, OPEN, READ

SHORTEST = 3
"""Tokens of the flattest tree beside those of its words: its root opens and closes, and EOS."""


class TreeState(NamedTuple):
    """Of each hypothesis; int32 [N] but for `empty` and `untagged`, bool [N], and `given`.

    Attributes:
      depth: constituents that are open.
      waiting: words that stand in no constituent yet; with a lookahead, those given that were not
        read yet, the end among them.
      room: tokens that may still be written, EOS included.
      empty: whether the innermost open constituent has nothing in it yet.
      untagged: whether the word that was just read has no tag yet.
      given: int32 [N, W], what the model reads of each word, and as the end.
      total: how many of them there are.
    """

    depth: Array
    waiting: Array
    room: Array
    empty: Array
    untagged: Array
    given: Array
    total: Array


@dataclasses.dataclass(frozen=True)
class TreeConstraint:
    """Trees over exactly the words of the sentence, finished within the limit: a `Constraint`.

    A constituent opens only over words that wait, and only while there is room to add all words and
    to close all constituents; one closes only when there is something in it, and the root only
    behind the last word. A word is added to the innermost constituent by its tag; with a lookahead,
    by reading on: the search writes that it reads, and the model is told what. A sentence of no
    words has an empty output.

    Attributes:
      opens: the tokens that begin a constituent.
      tags: those of tags.
      close: the token that ends a constituent.
      eos: that which ends an output.
      vocab_size: V.
      read: the token by which the next word or the end is read; None: without a lookahead.
    """

    opens: tuple[int, ...]
    tags: tuple[int, ...]
    close: int
    eos: int
    vocab_size: int
    read: int | None

    @classmethod
    def of(cls, symbols: SymbolTokenizer) -> "TreeConstraint":
        """That of a vocabulary of tree tokens.

        Raises:
          ValueError: no token begins or ends a constituent, or none is a tag.
        """
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
        self, given: Int[Array, "B W"], counts: Int[Array, " B"], limits: Int[Array, " B"]
    ) -> TreeState:
        """The state before the first token.

        Args:
          given: what the model reads of each sentence, word by word, and as its end; without a
            lookahead, anything.
          counts: how many are given.
          limits: of each output, EOS included; at least the `SHORTEST` and one for each tag and
            word read.
        """
        none = jnp.zeros_like(counts)
        no = none.astype(bool)
        return TreeState(none, counts, limits, no, no, given, counts)

    def allowed(self, state: TreeState) -> Bool[Array, "N V"]:
        """Whether each token may come next; see `Constraint`."""
        depth, waiting, room, empty, untagged, _, total = state
        looks_ahead = self.read is not None
        at_start = looks_ahead & (waiting == total)  # the first word is read below no root
        inside, some_wait = (depth > 0) & ~untagged, (waiting > 0) & ~untagged
        may_add = some_wait & (at_start | (depth > 0))
        tags = jnp.maximum(waiting - 1, 0) if looks_ahead else 0  # of what is still to be read
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
            may[self.read,] = may_add
        masks = [those[:, None] & self._mask(ids) for ids, those in may.items()]
        return jnp.stack(masks).any(axis=0)

    def advance(
        self, state: TreeState, tokens: Int[Array, " N"]
    ) -> tuple[TreeState, Int[Array, " N"]]:
        """The state behind one more token each, and what the model reads; see `Constraint`."""
        opened, tagged = (jnp.asarray(self._mask(ids))[tokens] for ids in (self.opens, self.tags))
        closed, reads = tokens == self.close, tokens == self.read
        added = tagged if self.read is None else reads & (state.waiting > 0)
        waiting = state.waiting - added
        after = TreeState(
            depth=state.depth + opened - closed,
            waiting=waiting,
            room=state.room - 1,
            empty=opened | (state.empty & ~(added | closed)),
            untagged=reads & (waiting > 0),
            given=state.given,
            total=state.total,
        )
        place = jnp.clip(state.total - state.waiting, 0, state.given.shape[1] - 1)
        word = jnp.take_along_axis(state.given, place[:, None], axis=1)[:, 0]
        return after, jnp.where(reads, word, tokens)

    def _mask(self, ids: Collection[int]) -> np.ndarray:
        """Bool [V]."""
        return np.isin(np.arange(self.vocab_size), list(ids))
