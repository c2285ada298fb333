# SPDX-License-Identifier: Apache-2.0
"""The config section `tokenizer`, and the registry of tokenizer kinds."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from transformer_jax.fields import Configurable
from transformer_jax.ranges import OneOf, Range, check_fields, short_repr
from transformer_jax.registry import Registry
from transformer_jax.tokenization.specials import NUM_SPECIALS
from transformer_jax.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenizerKind:
    """Trains, stores and loads the vocabularies of one kind.

    Attributes:
      train: (config, texts, name) -> content of the vocabulary's file. Raises UserError, which
        includes `name`, if the texts do not fit the config. None: this kind is not trained.
      import_files: (tokenizer.path, side) -> content of the vocabulary's file, read from existing
        files. Raises UserError if there are none. None: this kind is trained.
      load: content -> tokenizer; ValueError, KeyError, TypeError or AttributeError mean damage. It
        must not execute anything from the content, because a workdir may come from anywhere.
      suffix: suffix of the file's name, such as ".model". Kinds with the same suffix share `load`.
      reads: config fields ("section.field") that this kind reads and some other kind does not.
        Setting a field that only other kinds read is an error. None: this kind reads all of them.
        `vocab_size` and `joint` are added for every kind that is trained.
      least_vocab_size: size of the smallest vocabulary.
      keeps_whitespace: True if whitespace is kept as text, whatever `normalization` is.
      can_mask: False if no vocabulary of this kind has a mask token; one is then added for a task
        that needs it.
      is_lossless: False if other words than those that `unk` stands for cannot be decoded.
    """

    train: "Callable[[TokenizerConfig, Sequence[str], str], bytes] | None"
    load: Callable[[bytes], Tokenizer]
    suffix: str
    import_files: Callable[[str, str], bytes] | None = None
    reads: Collection[str] | None = None
    least_vocab_size: int = NUM_SPECIALS + 1
    keeps_whitespace: bool = False
    can_mask: bool = True
    is_lossless: bool = True

    def __post_init__(self) -> None:
        if self.train and self.reads is not None:
            reads = (*self.reads, "tokenizer.vocab_size", "tokenizer.joint")
            object.__setattr__(self, "reads", reads)


TOKENIZERS: Registry[TokenizerKind] = Registry("tokenizer.kind")
"""Tokenizer kinds by name. The package's `__init__.py` registers the built-in ones."""


_TAG = re.compile(r"<[\w-]+>")


@dataclass(frozen=True)
class TokenizerConfig(Configurable):
    """Tokenizers of a run. The paper uses joint byte-pair encoding (section 5.1).

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
      joint: share one vocabulary between all sides, instead of training one for each.
      character_coverage: share of the text's characters that get a token; rarer characters become
        unknown. For sentencepiece's kinds.
      byte_fallback: split characters without a token into UTF-8 bytes (256 tokens of the
        vocabulary), so that none is unknown and the model can copy them. For "bpe" and "unigram".
      normalization: normalization of the text: "nmt_nfkc" (NFKC; runs of white space become one
        space) or "identity" (none: line breaks and all spaces are kept). For "bpe", "unigram" and
        "char".
      lowercase: read text in lower case, so that outputs are in lower case, too. "wordpiece" also
        removes accents, as for BERT's uncased models. A capital sigma becomes σ at the end of a
        word, too. For "wordpiece" and sentencepiece's kinds.
      sampling: draw the tokens of training text at random, differently in each epoch; 0: off. For
        byte-pair encoding, the probability that a possible merge is skipped (BPE-dropout, Provilkov
        et al. 2020, who use 0.1; not what sentencepiece's own option means). For "unigram", the
        exponent alpha of a segmentation's probability (Kudo 2018, who uses 0.1 to 0.5): the
        smaller, the more random. Evaluation and inference do not sample. For "bpe", "unigram",
        "byte_bpe" and "file".
      extra_tokens: tokens that no text spells, for a model's own use: sentinels, registers. Their
        ids follow those of the vocabulary (`SpecialTokens.extra`).
      tags: tokens that texts spell (names in <>, separated by commas, such as "<bt>"): marks of a
        corpus or a language. Their ids come last; decoding drops them.
      path: vocabulary of kind "file": Hugging Face's tokenizer.json, a sentencepiece .model, or a
        folder with either, with Marian's source.spm, target.spm and vocab.json, with GPT-2's
        vocab.json and merges.txt, or with BERT's vocab.txt. The run keeps a copy.

    Raises:
      ValueError: the kind is unknown, a value is out of range, or the vocabulary is too small for
        the tokens that it always contains.
    """

    kind: str = "bpe"
    vocab_size: Annotated[int, Range(1, 10_000_000)] = 8000
    joint: bool = True
    character_coverage: Annotated[float, Range(0.98, 1.0)] = 1.0
    byte_fallback: bool = False
    normalization: Annotated[str, OneOf("nmt_nfkc", "identity")] = "nmt_nfkc"
    lowercase: bool = False
    sampling: Annotated[float, Range(0.0, 1.0)] = 0.0
    extra_tokens: Annotated[int, Range(0, 65_536)] = 0
    tags: str | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        kind = TOKENIZERS.find(self.kind)
        if kind.import_files and not self.path:
            raise ValueError(f"kind {self.kind} needs an existing vocabulary; set path to its file")
        if self.vocab_size < kind.least_vocab_size:
            raise ValueError(
                f"vocab_size {self.vocab_size} is too small: with kind {self.kind} "
                f"use {kind.least_vocab_size} or more"
            )
        tags = self.tag_pieces
        if len(set(tags)) < len(tags) or not all(map(_TAG.fullmatch, tags)):
            raise ValueError(
                f"tags is {short_repr(self.tags)}; write different names in <>, such as <bt>,<own>"
            )

    @property
    def tag_pieces(self) -> tuple[str, ...]:
        """The pieces of `tags`."""
        return tuple(self.tags.split(",")) if self.tags is not None else ()

    def num_added(self, needs_mask: bool) -> int:
        """Number of tokens that follow those of the vocabulary."""
        return self.adds_mask(needs_mask) + self.extra_tokens + len(self.tag_pieces)

    def adds_mask(self, needs_mask: bool) -> bool:
        """True if a task that needs a mask gets one besides the tokens of the vocabulary."""
        return needs_mask and not TOKENIZERS[self.kind].can_mask

    @property
    def keeps_whitespace(self) -> bool:
        """True if all whitespace is kept as text."""
        return TOKENIZERS[self.kind].keeps_whitespace or self.normalization == "identity"
