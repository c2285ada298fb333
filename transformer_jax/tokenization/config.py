"""What a run's tokenizers are to be."""

from dataclasses import dataclass

from transformer_jax.tokenization.specials import NUM_SPECIALS

KINDS = ("bpe", "unigram", "char", "word")


@dataclass(frozen=True)
class TokenizerConfig:
    """The config section `tokenizer`. The paper uses joint byte-pair encoding (section 5.1).

    vocab_size counts the special tokens and holds for each vocabulary. It is exact for "bpe" and
    "unigram"; for "char" and "word" it is an upper bound, the most frequent ones being kept:
    ask the tokenizer itself for the size that a model needs.

    Raises ValueError for an unknown kind, a vocabulary without room for a token beside the
    specials, a coverage outside [0.98, 1], or bytes in a vocabulary that has no place for them.
    """

    kind: str = "bpe"
    vocab_size: int = 8000
    joint: bool = True
    """One vocabulary for all sides, or one for each."""
    character_coverage: float = 1.0
    """Share of the text's characters that get a token; the rarest beyond it become unknown."""
    byte_fallback: bool = False
    """Characters without a token become their UTF-8 bytes, 256 tokens of the vocabulary, so that
    none is unknown and the model can copy it; for "bpe" and "unigram"."""

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is unknown: use one of {', '.join(KINDS)}")
        if self.vocab_size <= NUM_SPECIALS:
            raise ValueError(
                f"vocab_size {self.vocab_size} is too small: {NUM_SPECIALS} tokens are special, "
                f"use {NUM_SPECIALS + 1} or more"
            )
        if self.byte_fallback and self.kind not in ("bpe", "unigram"):
            raise ValueError(f"byte_fallback asks for kind bpe or unigram, not {self.kind}")
        if not 0.98 <= self.character_coverage <= 1.0:
            raise ValueError(
                f"character_coverage {self.character_coverage} is not within 0.98 and 1"
            )
