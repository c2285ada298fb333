# SPDX-License-Identifier: Apache-2.0
"""A tokenizer: UTF-8 bytes, as in ByT5 (Xue et al. 2021).

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/bytes \\
        --modules=docs/recipes/tokenizer.py --config.tokenizer.kind=bytes
"""

from transformer_jax.tokenization.config import TOKENIZERS, TokenizerKind
from transformer_jax.tokenization.specials import DEFAULT_SPECIALS, NUM_SPECIALS, SPECIAL_PIECES
from transformer_jax.tokenization.tokenizer import BaseTokenizer, encode_words_separately


class Bytes(BaseTokenizer):
    """Each byte is a token; the first ids are the special tokens."""

    specials = DEFAULT_SPECIALS
    vocab_size = NUM_SPECIALS + 256
    _is_word_start = [i in (NUM_SPECIALS + 10, NUM_SPECIALS + 32) for i in range(vocab_size)]

    def encode(self, text):
        return [NUM_SPECIALS + byte for byte in text.encode(errors="replace")]

    def encode_words(self, words):
        return encode_words_separately(words, self, " ")

    def decode(self, ids):
        return bytes(i - NUM_SPECIALS for i in ids if i >= NUM_SPECIALS).decode(errors="replace")

    def pieces(self, ids):
        return [SPECIAL_PIECES[i] if i < NUM_SPECIALS else f"<{i - NUM_SPECIALS}>" for i in ids]


def train(config, texts, name):
    """Nothing is learned; the content of the vocabulary's file."""
    return b"utf-8"


def load(content):
    """The tokenizer of a file that `train` wrote."""
    if content != b"utf-8":
        raise ValueError("this is no vocabulary of bytes")
    return Bytes()


BYTES = TokenizerKind(train, load, ".bytes", keeps_whitespace=True, can_mask=False, reads=())
TOKENIZERS.register("bytes", BYTES)
