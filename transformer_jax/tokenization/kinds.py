"""The kinds of tokenizers that come with the package."""

from functools import partial

from transformer_jax.tokenization.config import TOKENIZERS, TokenizerKind
from transformer_jax.tokenization.huggingface import (
    HuggingFaceTokenizer,
    train_byte_bpe,
    train_wordpiece,
)
from transformer_jax.tokenization.published import PublishedTokenizer, from_files
from transformer_jax.tokenization.sentencepiece import SentencePieceTokenizer, train_sentencepiece
from transformer_jax.tokenization.specials import NUM_SPECIALS, WORDPIECE_PIECES
from transformer_jax.tokenization.word_level import ClassedWords, train_word_classes

_sentencepiece = partial(
    TokenizerKind, train=train_sentencepiece, load=SentencePieceTokenizer, suffix=".model"
)
_hugging_face = partial(TokenizerKind, load=HuggingFaceTokenizer, suffix=".json")

_COVERAGE, _NORMALIZATION = "tokenizer.character_coverage", "tokenizer.normalization"
_SUBWORDS = _sentencepiece(reads=(_COVERAGE, _NORMALIZATION, "tokenizer.byte_fallback"))

TOKENIZERS.register("bpe", _SUBWORDS)
TOKENIZERS.register("unigram", _SUBWORDS)
TOKENIZERS.register("char", _sentencepiece(reads=(_COVERAGE, _NORMALIZATION)))
TOKENIZERS.register("word", _sentencepiece(reads=(_COVERAGE,)))
TOKENIZERS.register(
    "word_classes",
    TokenizerKind(
        train=train_word_classes, load=ClassedWords.from_json, suffix=".words.json", reads=()
    ),
)
TOKENIZERS.register(
    "byte_bpe",
    _hugging_face(
        train=train_byte_bpe,
        reads=(),
        least_vocab_size=NUM_SPECIALS + 256,  # all bytes are in it
        keeps_white_space=True,
    ),
)
TOKENIZERS.register(
    "wordpiece",
    _hugging_face(
        train=train_wordpiece,
        reads=("tokenizer.lowercase",),
        least_vocab_size=len(WORDPIECE_PIECES) + 1,
    ),
)
TOKENIZERS.register(
    "file",
    TokenizerKind(
        train=None,
        take=from_files,
        load=PublishedTokenizer,
        suffix=".file.json",
        reads=("tokenizer.path",),
    ),
)
