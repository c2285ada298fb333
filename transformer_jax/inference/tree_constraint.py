"""The constraint under which a search writes nothing but trees, in the tokens of `trees.linear`.

Axes: B batch, N = B * beams, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from transformer_jax.tokenization import Symbols
from transformer_jax.trees import CLOSE, OPEN

SHORTEST = 3
"""Tokens of the shortest tree beside a tag for each word: its root opens and closes, and EOS."""


class TreeState(NamedTuple):
    """Of each hypothesis; int32 [N] but for `empty`.

    Attributes:
      depth: constituents that are open.
      words: how many of the sentence's words have no tag yet.
      room: tokens that may still be written, EOS included.
      empty: bool [N], whether the innermost open constituent has nothing in it yet.
    """

    depth: Array
    words: Array
    room: Array
    empty: Array


@dataclasses.dataclass(frozen=True)
class TreeConstraint:
    """Trees over exactly the words of the sentence, finished within the limit: a `Constraint`.

    A constituent opens only over words that are left, and only while there is room to tag all
    words and to close all constituents; one closes only when there is something in it, and the root
    only behind the last word. A sentence of no words has an empty output.

    Attributes:
      opens: the tokens that begin a constituent.
      tags: those that stand for a word.
      close: the token that ends a constituent.
      eos: that which ends an output.
      vocab_size: V.
    """

    opens: tuple[int, ...]
    tags: tuple[int, ...]
    close: int
    eos: int
    vocab_size: int

    @classmethod
    def of(cls, symbols: Symbols) -> "TreeConstraint":
        """That of a vocabulary of tree tokens.

        Raises:
          ValueError: no token ends a constituent.
        """
        ids = {symbol: symbols.id_of(symbol) for symbol in symbols.symbols}
        if CLOSE not in ids:
            raise ValueError(f"the vocabulary of trees has no {CLOSE!r}: it is of no constituents")
        return cls(
            opens=tuple(i for symbol, i in ids.items() if symbol.startswith(OPEN)),
            tags=tuple(i for symbol, i in ids.items() if symbol[0] not in (OPEN, CLOSE)),
            close=ids[CLOSE],
            eos=symbols.specials.eos,
            vocab_size=symbols.vocab_size,
        )

    def begin(self, sizes: Int[Array, " B"], limits: Int[Array, " B"]) -> TreeState:
        """The state before the first token.

        Args:
          sizes: words of each sentence.
          limits: of each output, EOS included; at least the words and `SHORTEST`.
        """
        return TreeState(jnp.zeros_like(sizes), sizes, limits, jnp.zeros_like(sizes, bool))

    def allowed(self, state: TreeState) -> Bool[Array, "N V"]:
        """Whether each token may come next; see `Constraint`."""
        depth, words, room, empty = state
        may = {
            "open": (words > 0) & (words + depth + SHORTEST <= room),
            "tag": (words > 0) & ((depth > 0) | (words == 1)),
            "close": (depth > 0) & ~empty & ((depth > 1) | (words == 0)),
            "end": (depth == 0) & (words == 0),
        }
        masks = self._masks
        return jnp.stack([may[kind][:, None] & masks[kind] for kind in may]).any(axis=0)

    def advance(self, state: TreeState, tokens: Int[Array, " N"]) -> TreeState:
        """The state behind one more token each; see `Constraint`."""
        opens, tags, closes = (
            jnp.asarray(self._masks[kind])[tokens] for kind in ("open", "tag", "close")
        )
        return TreeState(
            depth=state.depth + opens - closes,
            words=state.words - tags,
            room=state.room - 1,
            empty=opens | (state.empty & ~(tags | closes)),
        )

    @cached_property
    def _masks(self) -> dict[str, np.ndarray]:
        """Bool [V] of each sort of tokens."""
        return {
            "open": self._mask(self.opens),
            "tag": self._mask(self.tags),
            "close": self._mask([self.close]),
            "end": self._mask([self.eos]),
        }

    def _mask(self, ids: Sequence[int]) -> np.ndarray:
        return np.isin(np.arange(self.vocab_size), ids)
