"""Text to token ids and back: the tokenizers of a run, trained on its own text and kept with it."""

from transformer_jax.tokenization.config import KINDS, TokenizerConfig
from transformer_jax.tokenization.sides import (
    Tokenizers,
    copy_tokenizers,
    load_tokenizers,
    train_tokenizers,
)
from transformer_jax.tokenization.specials import BOS, EOS, NUM_SPECIALS, PAD, UNK
from transformer_jax.tokenization.tokenizer import Tokenizer

__all__ = [
    "BOS",
    "EOS",
    "KINDS",
    "NUM_SPECIALS",
    "PAD",
    "UNK",
    "Tokenizer",
    "TokenizerConfig",
    "Tokenizers",
    "copy_tokenizers",
    "load_tokenizers",
    "train_tokenizers",
]
