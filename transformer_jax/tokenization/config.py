"""The section `tokenizer` of a config, and the registry of what its field `kind` may name."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from transformer_jax.ranges import OneOf, Range, check_fields
from transformer_jax.registry import Registry
from transformer_jax.tokenization.specials import NUM_SPECIALS
from transformer_jax.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenizerKind:
    """An entry of the registry: how a vocabulary is learned, stored and loaded.

    Attributes:
      train: (config, texts, name) -> the content of the file to store. Raises UserError, with
        `name` in it, where the texts do not fit the config. None: nothing is learned.
      take: (tokenizer.path, side) -> the same of a vocabulary that is there already. Raises
        UserError where there is none.
      load: that content -> the tokenizer. Raises ValueError where it is damaged. It must execute
        nothing that the content says, as a workdir may come from anywhere.
      suffix: ends the file's name, as ".model". Kinds that share a suffix share `load`.
      reads: fields of a config, "section.field", that it reads and other kinds may do without; what
        it does not read of theirs is refused where it is set. None: it reads all. A kind that
        trains reads `vocab_size` and `joint` without saying so.
      least_vocab_size: the smallest vocabulary.
      keeps_white_space: whether white space is text like any other, whatever `normalization` is.
    """

    train: "Callable[[TokenizerConfig, Sequence[str], str], bytes] | None"
    load: Callable[[bytes], Tokenizer]
    suffix: str
    take: Callable[[str, str], bytes] | None = None
    reads: Collection[str] | None = None
    least_vocab_size: int = NUM_SPECIALS + 1
    keeps_white_space: bool = False

    def __post_init__(self) -> None:
        if self.train and self.reads is not None:
            reads = (*self.reads, "tokenizer.vocab_size", "tokenizer.joint")
            object.__setattr__(self, "reads", reads)


TOKENIZERS: Registry[TokenizerKind] = Registry("tokenizer.kind")
"""Filled by `kinds`, and by users with kinds of their own."""


@dataclass(frozen=True)
class TokenizerConfig:
    """How vocabularies are learned. The paper uses joint byte-pair encoding (section 5.1).

    Attributes:
      kind: an entry of `TOKENIZERS`. From sentencepiece: "bpe", "unigram" (Kudo 2018), "char" and
        "word" (split at spaces). "word_classes": words, with rare and unknown ones mapped to
        classes by capitals, digits, hyphen and suffix (Petrov et al. 2006). From Hugging Face's
        tokenizers: "byte_bpe", GPT-2's byte-level BPE (Radford et al. 2019), lossless and without
        unknown tokens, and "wordpiece", BERT's (Devlin et al. 2018). "file": an existing
        vocabulary, from `path`.
      vocab_size: size of each vocabulary, special tokens included. Exact for "bpe" and "unigram";
        for the others an upper bound (the most frequent tokens are kept), so take the size for a
        model from the tokenizer itself.
      joint: share one vocabulary between all sides, instead of one for each.
      character_coverage: share of the text's characters that get a token; rarer characters become
        unknown. For sentencepiece's kinds.
      byte_fallback: split characters without a token into UTF-8 bytes (256 tokens of the
        vocabulary), so that none is unknown and the model can copy them. For "bpe" and "unigram".
      normalization: normalization of the text: "nmt_nfkc" (NFKC; runs of white space become one
        space) or "identity" (none: line breaks and all spaces are kept). For "bpe", "unigram" and
        "char".
      lowercase: remove case and accents, as for BERT's uncased models. For "wordpiece".
      path: vocabulary of kind "file": Hugging Face's tokenizer.json, a sentencepiece .model, or a
        folder with either, with Marian's source.spm, target.spm and vocab.json, with GPT-2's
        vocab.json and merges.txt, or with BERT's vocab.txt. The run keeps a copy.

    Raises:
      ValueError: an unknown kind, a value out of range, or a vocabulary without room for what is
        always in it.
    """

    kind: str = "bpe"
    vocab_size: Annotated[int, Range(1, 10_000_000)] = 8000
    joint: bool = True
    character_coverage: Annotated[float, Range(0.98, 1.0)] = 1.0
    byte_fallback: bool = False
    normalization: Annotated[str, OneOf("nmt_nfkc", "identity")] = "nmt_nfkc"
    lowercase: bool = False
    path: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        kind = TOKENIZERS.find(self.kind)
        if kind.take and not self.path:
            raise ValueError(f"kind {self.kind} takes a vocabulary from files; set path to them")
        if self.vocab_size < kind.least_vocab_size:
            raise ValueError(
                f"vocab_size {self.vocab_size} is too small: with kind {self.kind} "
                f"use {kind.least_vocab_size} or more"
            )

    @property
    def keeps_white_space(self) -> bool:
        """Whether white space is text like any other, none of it lost."""
        return TOKENIZERS[self.kind].keeps_white_space or self.normalization == "identity"
