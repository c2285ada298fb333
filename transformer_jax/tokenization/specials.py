# SPDX-License-Identifier: Apache-2.0
"""Special tokens of a vocabulary: ids that represent no text, by role.

Every vocabulary that is trained here begins with pad, unk, bos and eos (kind "wordpiece" adds mask,
and writes bos and eos as BERT's [CLS] and [SEP]). A mask of other kinds and extra tokens come last
(`tokenization.vocabularies`). Published vocabularies have special tokens at any
ids, and one id may have several roles. Code outside of this package reads ids from `SpecialTokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

PAD, UNK, BOS, EOS = range(4)
NUM_SPECIALS = 4

MASK = 4
"""In vocabularies of kind "wordpiece", after the other four."""

SPECIAL_PIECES = ("⟨pad⟩", "⟨unk⟩", "⟨s⟩", "⟨/s⟩")
"""Pieces of the four. They are not written "<unk>" and so on: real text contains that (WikiText is
full of it), and sentencepiece would learn no characters from it. No byte-level piece contains these
brackets."""

MASK_PIECE = "[MASK]"

WORDPIECE_SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", MASK_PIECE)
"""Pieces of the five in a vocabulary of kind "wordpiece", written as in BERT's."""


@dataclass(frozen=True)
class Frame:
    """Special tokens around a complete text, or around a pair of texts.

    Attributes:
      head: before the text.
      tail: after the text.
      between: between the two texts of a pair.
    """

    head: tuple[int, ...]
    tail: tuple[int, ...]
    between: tuple[int, ...] = ()

    def around(self, *texts: Sequence[int]) -> list[int]:
        """Adds the special tokens to one text, or to a pair: head, text, between, text, tail."""
        first, *others = texts
        joined = [token for text in others for token in (*self.between, *text)]
        return [*self.head, *first, *joined, *self.tail]

    def size(self, texts: int = 1) -> int:
        """Number of special tokens that `around` adds to this number of texts."""
        return len(self.head) + len(self.tail) + (texts - 1) * len(self.between)


@dataclass(frozen=True)
class SpecialTokens:
    """Special tokens of a vocabulary, by role.

    Attributes:
      pad: fills the outputs of a search after their end. It may be any id, even `eos`: padding is
        recognized by segment ids and lengths, never by a token.
      eos: ends every text.
      start: the decoder's first input, before the head of the target.
      first: begins running text and prompts of a language model.
      translation: frame of a source or a target. A search forces the target's head, then generates
        until `eos`.
      encoder: frame of the input of an encoder-only model. `between` is not empty, and begins with
        the token that ends the first text.
      unk: replaces text that the vocabulary cannot spell; None if it can spell everything.
      mask: replaces tokens that a masked language model predicts; None if there is none.
      ends: other tokens that end a generated text, such as that of a turn.
      extra: tokens for a model's own use, such as sentinels (`tokenizer.extra_tokens`). A search
        may generate them.
      others: other tokens that represent no text.
      unused: ids without a token, for example if the embedding table has more rows than the
        vocabulary has tokens.
    """

    pad: int
    eos: int
    start: int
    first: int
    translation: Frame
    encoder: Frame
    unk: int | None = None
    mask: int | None = None
    ends: tuple[int, ...] = ()
    extra: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    unused: tuple[int, ...] = ()

    @property
    def decoder(self) -> Frame:
        """Frame of the input of a decoder-only model."""
        return Frame((self.first,), (self.eos,), (self.eos,))

    @cached_property
    def ids(self) -> frozenset[int]:
        """All ids that represent no text. Decoding drops them."""
        frames = (self.translation, self.encoder)
        around = [i for frame in frames for i in (*frame.head, *frame.between, *frame.tail)]
        optional = [i for i in (self.unk, self.mask) if i is not None]
        around += (self.pad, self.eos, self.start, self.first)
        return frozenset((*around, *optional, *self.ends, *self.extra, *self.others, *self.unused))

    @cached_property
    def banned(self) -> tuple[int, ...]:
        """Ids that a search never generates: padding, unknown, heads and unused; never an end."""
        heads = (self.start, self.first, *self.translation.head, *self.encoder.head)
        unknown = () if self.unk is None else (self.unk,)
        ids = dict.fromkeys((self.pad, *unknown, *heads, *self.unused))
        return tuple(i for i in ids if i not in (self.eos, *self.ends))


DEFAULT_SPECIALS = SpecialTokens(
    pad=PAD,
    unk=UNK,
    start=BOS,
    eos=EOS,
    first=EOS,
    translation=Frame((), (EOS,)),
    encoder=Frame((BOS,), (EOS,), (EOS,)),
)
"""Special tokens of every vocabulary trained here, except kind "wordpiece"."""

WORDPIECE_SPECIALS = replace(DEFAULT_SPECIALS, mask=MASK)
