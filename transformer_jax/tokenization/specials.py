"""The special tokens of a vocabulary: ids that stand for no text, and what each is for.

Vocabularies that are trained here begin with the same four (of kind "wordpiece" five), BERT's [CLS]
being our BOS and its [SEP] our EOS. Those from elsewhere have theirs anywhere, and one id may play
several parts. Only `SpecialTokens` is known outside of this room.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

PAD, UNK, BOS, EOS = range(4)
NUM_SPECIALS = 4

MASK = 4
"""Only in vocabularies of kind "wordpiece", behind the four."""

PIECES = ("⟨pad⟩", "⟨unk⟩", "⟨s⟩", "⟨/s⟩")
"""How vocabularies write the four. Not as "<unk>": real text holds that (WikiText is full of it),
and sentencepiece would learn no character from it. No byte-level piece can hold these brackets."""

WORDPIECE_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""How a vocabulary of kind "wordpiece" writes its five: as BERT does."""


@dataclass(frozen=True)
class Frame:
    """The special tokens around a text that is read or written whole.

    Attributes:
      head: stand before it.
      tail: stand behind it.
      between: stand between the two texts of a pair.
    """

    head: tuple[int, ...]
    tail: tuple[int, ...]
    between: tuple[int, ...] = ()

    def around(self, *texts: Sequence[int]) -> list[int]:
        """A text or a pair of texts in its frame: head, text, between, text, tail."""
        first, *others = texts
        joined = [token for text in others for token in (*self.between, *text)]
        return [*self.head, *first, *joined, *self.tail]

    def size(self, texts: int = 1) -> int:
        """How many tokens it adds to so many texts."""
        return len(self.head) + len(self.tail) + (texts - 1) * len(self.between)


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a vocabulary.

    Attributes:
      pad: fills the outputs of a search behind their end. It may be any id, `eos` too: what is
        padding follows from segment ids and lengths, never from a token.
      eos: ends every text.
      start: the decoder's first input, before the target's head.
      first: heads running text and prompts of a language model.
      translation: around a source or a target. Every output of a search is made to begin with the
        target's head; what follows it ends in `eos`.
      encoder: around what an encoder alone reads. `between` is not empty, and begins with the token
        that ends the first text.
      unk: stands for what the vocabulary cannot spell; None where it spells all.
      mask: hides a token from a masked language model; None where there is none.
      others: further tokens that stand for no text.
      unused: ids without a token, as where a table has more rows than the vocabulary has tokens.
    """

    pad: int
    eos: int
    start: int
    first: int
    translation: Frame
    encoder: Frame
    unk: int | None = None
    mask: int | None = None
    others: tuple[int, ...] = ()
    unused: tuple[int, ...] = ()

    @property
    def decoder(self) -> Frame:
        """Around what a decoder alone reads."""
        return Frame((self.first,), (self.eos,), (self.eos,))

    @cached_property
    def ids(self) -> frozenset[int]:
        """All that stand for no text, and that a decoded text leaves out."""
        frames = (self.translation, self.encoder)
        around = [i for frame in frames for i in (*frame.head, *frame.between, *frame.tail)]
        optional = [i for i in (self.unk, self.mask) if i is not None]
        around += (self.pad, self.eos, self.start, self.first)
        return frozenset((*around, *optional, *self.others, *self.unused))

    @cached_property
    def banned(self) -> tuple[int, ...]:
        """What no output holds: all that fills or heads a text, or is no token; never `eos`."""
        heads = (self.start, self.first, *self.translation.head, *self.encoder.head)
        unknown = () if self.unk is None else (self.unk,)
        found = dict.fromkeys((self.pad, *unknown, *heads, *self.unused))
        return tuple(i for i in found if i != self.eos)


OWN = SpecialTokens(
    pad=PAD,
    unk=UNK,
    start=BOS,
    eos=EOS,
    first=EOS,
    translation=Frame((), (EOS,)),
    encoder=Frame((BOS,), (EOS,), (EOS,)),
)
"""Those of vocabularies that are trained here."""

OWN_WORDPIECE = replace(OWN, mask=MASK)
