# SPDX-License-Identifier: Apache-2.0
"""Tokenizers: text to token ids and back, and the labels of classification tasks.

A run learns its vocabularies from its own training text, or copies published ones, and keeps them
in its workdir. `TOKENIZERS` lists the kinds; a user's own kind registers there.
"""

from functools import partial

from transformer_jax.registry import imported
from transformer_jax.tokenization.config import TOKENIZERS, TokenizerConfig, TokenizerKind
from transformer_jax.tokenization.sentencepiece import SentencePieceTokenizer, train_sentencepiece
from transformer_jax.tokenization.specials import (
    DEFAULT_SPECIALS,
    NUM_SPECIALS,
    WORDPIECE_SPECIAL_PIECES,
    Frame,
    SpecialTokens,
)
from transformer_jax.tokenization.tokenizer import (
    SampledTokenizer,
    Tokenizer,
    encode_batch,
    encode_plain,
    resegmenter_of,
    special_token_ids,
)
from transformer_jax.tokenization.vocabularies import (
    Tokenizers,
    copy_tokenizers,
    expected_sizes,
    load_tokenizers,
    store_tokenizers,
    train_tokenizers,
)
from transformer_jax.tokenization.word_level import (
    UNKNOWN_CLASS,
    Labels,
    SymbolTokenizer,
    WordClassTokenizer,
    choose_words_and_classes,
    train_word_classes,
)

_HUGGING_FACE = f"{__name__}.huggingface"
_PUBLISHED = f"{__name__}.published"

_sentencepiece = partial(
    TokenizerKind,
    train=train_sentencepiece,
    load=SentencePieceTokenizer,
    suffix=".model",
    can_mask=False,
)
_hugging_face = partial(
    TokenizerKind, load=imported(f"{_HUGGING_FACE}:HuggingFaceTokenizer"), suffix=".json"
)

_WORDS = ("tokenizer.character_coverage", "tokenizer.lowercase")
_CHARACTERS = (*_WORDS, "tokenizer.normalization")
_SAMPLING = "tokenizer.sampling"
_SUBWORDS = _sentencepiece(reads=(*_CHARACTERS, "tokenizer.byte_fallback", _SAMPLING))

TOKENIZERS.register("bpe", _SUBWORDS)
TOKENIZERS.register("unigram", _SUBWORDS)
TOKENIZERS.register("char", _sentencepiece(reads=_CHARACTERS))
TOKENIZERS.register("word", _sentencepiece(reads=_WORDS))
TOKENIZERS.register(
    "word_classes",
    TokenizerKind(
        train=train_word_classes,
        load=WordClassTokenizer.from_json,
        suffix=".words.json",
        reads=(),
        can_mask=False,
        is_lossless=False,
    ),
)
TOKENIZERS.register(
    "byte_bpe",
    _hugging_face(
        train=imported(f"{_HUGGING_FACE}:train_byte_bpe"),
        reads=(_SAMPLING,),
        least_vocab_size=NUM_SPECIALS + 256,  # all bytes are in it
        keeps_whitespace=True,
        can_mask=False,
    ),
)
TOKENIZERS.register(
    "wordpiece",
    _hugging_face(
        train=imported(f"{_HUGGING_FACE}:train_wordpiece"),
        reads=("tokenizer.lowercase",),
        least_vocab_size=len(WORDPIECE_SPECIAL_PIECES) + 1,
    ),
)
TOKENIZERS.register(
    "file",
    TokenizerKind(
        train=None,
        import_files=imported(f"{_PUBLISHED}:import_tokenizer"),
        load=imported(f"{_PUBLISHED}:PublishedTokenizer"),
        suffix=".file.json",
        reads=("tokenizer.path", _SAMPLING),
    ),
)
