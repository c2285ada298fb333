"""The special tokens: the same four ids, first in every vocabulary."""

PAD = 0
"""Fills a row up to its length; masked everywhere, never predicted."""

UNK = 1
"""Stands for what the vocabulary cannot spell."""

BOS = 2
"""The decoder's first input."""

EOS = 3
"""The last token of every sequence, on both sides."""

NUM_SPECIALS = 4
