"""What a run's tokenizers are to be."""

from dataclasses import dataclass

from transformer_jax.tokenization.specials import NUM_SPECIALS, WORDPIECE_PIECES

SENTENCEPIECE_KINDS = ("bpe", "unigram", "char", "word")
HUGGING_FACE_KINDS = ("byte_bpe", "wordpiece")
KINDS = SENTENCEPIECE_KINDS + HUGGING_FACE_KINDS

NORMALIZATIONS = ("nmt_nfkc", "identity")

_ALWAYS_IN = {
    "byte_bpe": (NUM_SPECIALS + 256, f"{NUM_SPECIALS} tokens are special and 256 are the bytes"),
    "wordpiece": (len(WORDPIECE_PIECES), f"{len(WORDPIECE_PIECES)} tokens are special"),
}


@dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes tokens. The paper uses joint byte-pair encoding (section 5.1).

    Attributes:
      kind: by sentencepiece "bpe", "unigram" (Kudo 2018), "char", or "word", what stands between
        spaces; by Hugging Face's tokenizers "byte_bpe", GPT-2's byte-level BPE (Radford et al.
        2019), to which no text is unknown and which loses nothing, or "wordpiece", BERT's (Devlin
        et al. 2018).
      vocab_size: tokens of each vocabulary, the special ones included. Exact for "bpe" and
        "unigram"; for the others an upper bound, the most frequent tokens being kept: the tokenizer
        itself has the size that a model needs.
      joint: one vocabulary for all sides, or one for each.
      character_coverage: share of the text's characters that get a token; the rarest beyond it
        become unknown. For sentencepiece's kinds.
      byte_fallback: characters without a token become their UTF-8 bytes, 256 tokens of the
        vocabulary, so that none is unknown and the model can copy it; for "bpe" and "unigram".
      normalization: what becomes of text on its way in: "nmt_nfkc" (NFKC; runs of white space
        become one space) or "identity" (nothing: line breaks and all spaces are text); for "bpe",
        "unigram" and "char".
      lowercase: whether text loses case and accents, as for BERT's uncased models; for "wordpiece".

    Raises:
      ValueError: an unknown kind, a vocabulary without room for what is always in it, a coverage
        outside [0.98, 1], or a field that does not fit the kind.
    """

    kind: str = "bpe"
    vocab_size: int = 8000
    joint: bool = True
    character_coverage: float = 1.0
    byte_fallback: bool = False
    normalization: str = "nmt_nfkc"
    lowercase: bool = False

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is unknown: use one of {', '.join(KINDS)}")
        self._check_size()
        if self.byte_fallback and self.kind not in ("bpe", "unigram"):
            raise ValueError(f"byte_fallback asks for kind bpe or unigram, not {self.kind}")
        if not 0.98 <= self.character_coverage <= 1.0:
            raise ValueError(
                f"character_coverage {self.character_coverage} is not within 0.98 and 1"
            )
        if self.character_coverage < 1.0 and self.kind not in SENTENCEPIECE_KINDS:
            raise ValueError(
                f"character_coverage asks for kind {', '.join(SENTENCEPIECE_KINDS)}, "
                f"not {self.kind}"
            )
        if self.normalization not in NORMALIZATIONS:
            raise ValueError(
                f"normalization {self.normalization!r} is unknown: "
                f"use one of {', '.join(NORMALIZATIONS)}"
            )
        if self.normalization != "nmt_nfkc" and self.kind not in ("bpe", "unigram", "char"):
            raise ValueError(
                f"normalization {self.normalization} asks for kind bpe, unigram or char, "
                f"not {self.kind}"
            )
        if self.lowercase and self.kind != "wordpiece":
            raise ValueError(f"lowercase asks for kind wordpiece, not {self.kind}")

    @property
    def keeps_white_space(self) -> bool:
        """Whether white space is text like any other, none of it lost."""
        return self.kind == "byte_bpe" or self.normalization == "identity"

    def _check_size(self) -> None:
        specials = (NUM_SPECIALS, f"{NUM_SPECIALS} tokens are special")
        fixed, what = _ALWAYS_IN.get(self.kind, specials)
        least = fixed if self.kind == "byte_bpe" else fixed + 1  # bytes alone are a vocabulary
        if self.vocab_size < least:
            raise ValueError(
                f"vocab_size {self.vocab_size} is too small: {what}, use {least} or more"
            )
