"""Trains byte-level BPE and WordPiece vocabularies with Hugging Face's library `tokenizers`."""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import tokenizers
from tokenizers import trainers

from transformer_jax.errors import UserError
from transformer_jax.tokenization.config import TokenizerConfig
from transformer_jax.tokenization.huggingface_tokenizer import (
    BYTES,
    CONTINUED,
    byte_bpe,
    wordpiece,
)
from transformer_jax.tokenization.specials import PIECES, WORDPIECE_PIECES

MAX_CHARACTERS = 1000
"""A "wordpiece" vocabulary holds so many of the text's most frequent characters, or a quarter of
vocab_size where that is more; a word with another character is unknown."""

MIN_FREQUENCY = 2
"""Rarer pairs are not merged."""


def train_byte_bpe(config: TokenizerConfig, texts: Sequence[str], name: str) -> bytes:
    """The JSON file of a byte-level BPE; any text will do, and any size that the config takes."""
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=list(PIECES),
        initial_alphabet=BYTES,
        show_progress=False,
    )
    vocab = {piece: i for i, piece in enumerate([*PIECES, *BYTES])}
    model = _trained(byte_bpe(vocab, []), trainer, texts)
    return byte_bpe(model["vocab"], [tuple(pair) for pair in model["merges"]]).to_str().encode()


def train_wordpiece(config: TokenizerConfig, texts: Sequence[str], name: str) -> bytes:
    """The JSON file of a WordPiece tokenizer; the library finds the vocabulary by BPE.

    Raises:
      UserError: with `name` in it: the text's characters do not fit in `vocab_size`.
    """
    vocab = {piece: i for i, piece in enumerate(WORDPIECE_PIECES)}
    untrained = wordpiece(vocab, config.lowercase, reads_mask=False)
    characters, continued = _alphabet(untrained, texts, max(MAX_CHARACTERS, config.vocab_size // 4))
    always_in = [*WORDPIECE_PIECES, *characters, *continued]
    if not characters:
        raise UserError(f"the {name} tokenizer has no text to learn from: it holds no word")
    if len(always_in) > config.vocab_size:
        raise UserError(
            f"tokenizer.vocab_size {config.vocab_size} is too small: the characters of the {name} "
            f"text alone need {len(always_in)}; ask for more"
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        min_frequency=MIN_FREQUENCY,
        # By default the library numbers continued characters in hash order, which differs between
        # processes, and breaks ties by these numbers.
        special_tokens=always_in,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        continuing_subword_prefix=CONTINUED,
        show_progress=False,
    )
    model = _trained(untrained, trainer, texts)
    return wordpiece(model["vocab"], config.lowercase).to_str().encode()


def _trained(
    tokenizer: tokenizers.Tokenizer, trainer: trainers.Trainer, texts: Sequence[str]
) -> dict[str, Any]:
    """The section "model" of the trained tokenizer's JSON."""
    with _in_one_thread():
        tokenizer.train_from_iterator(texts, trainer)
    return json.loads(tokenizer.to_str())["model"]


@contextlib.contextmanager
def _in_one_thread() -> Iterator[None]:
    """Once the library has used threads it warns at every fork of the process."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _alphabet(
    tokenizer: tokenizers.Tokenizer, texts: Sequence[str], limit: int
) -> tuple[list[str], list[str]]:
    """The most frequent characters of the texts' words, and "##" with those that continue one."""
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(text.replace("\n", " ").split(" "))
    counts: Counter[str] = Counter()
    inner: set[str] = set()
    for chunk, times in chunks.items():
        normalized = tokenizer.normalizer.normalize_str(chunk)
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized):
            counts.update(dict.fromkeys(word, times))
            inner.update(word[1:])
    kept = sorted(counts, key=lambda character: (-counts[character], character))[:limit]
    return sorted(kept), [CONTINUED + character for character in sorted(inner.intersection(kept))]
