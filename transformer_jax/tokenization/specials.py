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
"""Hides a token that a masked language model is to find; in vocabularies of kind "wordpiece" only,
where it follows the four."""

PIECES = ("⟨pad⟩", "⟨unk⟩", "⟨s⟩", "⟨/s⟩")
"""How vocabularies write the four. Not as "<unk>": what is so written, texts hold (WikiText is full
of it), and sentencepiece learns no character from it; these brackets no byte-level piece can hold.
"""

WORDPIECE_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""How a vocabulary of kind "wordpiece" writes its five: as BERT's."""
