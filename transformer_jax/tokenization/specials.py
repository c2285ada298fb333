"""The special tokens: the same four ids, first in every vocabulary.

BERT's [CLS] is our BOS, its [SEP] our EOS.
"""

PAD = 0
"""Fills a row up to its length; masked everywhere, never predicted."""

UNK = 1
"""Stands for what the vocabulary cannot spell."""

BOS = 2
"""The decoder's first input."""

EOS = 3
"""The last token of every sequence, on both sides."""

NUM_SPECIALS = 4

MASK = 4
"""Hides a token that a masked language model must predict. Only in vocabularies of kind
"wordpiece", behind the four."""

PIECES = ("⟨pad⟩", "⟨unk⟩", "⟨s⟩", "⟨/s⟩")
"""How vocabularies write the four. Not as "<unk>": real text holds that (WikiText is full of it),
and sentencepiece would learn no character from it. No byte-level piece can hold these brackets."""

WORDPIECE_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""How a vocabulary of kind "wordpiece" writes its five: as BERT does."""
