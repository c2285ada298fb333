"""Text to token ids and back, and labels: the vocabularies of a run, learned from its own text and
kept with it.

A kind of one's own registers in `TOKENIZERS`: what trains its vocabulary, and what loads it.
"""

from transformer_jax.tokenization.config import TokenizerConfig, TokenizerKind
from transformer_jax.tokenization.huggingface import HuggingFaceTokenizer
from transformer_jax.tokenization.kinds import TOKENIZERS
from transformer_jax.tokenization.published import PublishedTokenizer, from_files
from transformer_jax.tokenization.sentencepiece import SentencePieceTokenizer
from transformer_jax.tokenization.specials import OWN, Frame, SpecialTokens
from transformer_jax.tokenization.tokenizer import Tokenizer, plain_ids, special_pieces
from transformer_jax.tokenization.vocabularies import (
    Tokenizers,
    copy_tokenizers,
    expected_sizes,
    load_tokenizers,
    store_tokenizers,
    train_tokenizers,
)
from transformer_jax.tokenization.word_level import (
    UNKNOWN,
    ClassedWords,
    Labels,
    Symbols,
    words_and_classes,
)

__all__ = [
    "OWN",
    "TOKENIZERS",
    "UNKNOWN",
    "ClassedWords",
    "Frame",
    "HuggingFaceTokenizer",
    "Labels",
    "PublishedTokenizer",
    "SentencePieceTokenizer",
    "SpecialTokens",
    "Symbols",
    "Tokenizer",
    "TokenizerConfig",
    "TokenizerKind",
    "Tokenizers",
    "copy_tokenizers",
    "expected_sizes",
    "from_files",
    "load_tokenizers",
    "plain_ids",
    "special_pieces",
    "store_tokenizers",
    "train_tokenizers",
    "words_and_classes",
]
