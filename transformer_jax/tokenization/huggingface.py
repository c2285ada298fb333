# SPDX-License-Identifier: Apache-2.0
"""Tokenizer trained by Hugging Face's library `tokenizers`: kinds "byte_bpe" and "wordpiece".

It is stored in the library's JSON format. Loading reads only the vocabulary, the merges and
`lowercase`; the rest is built here, so that a file cannot change how text is processed.
"""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from transformer_jax.errors import UserError
from transformer_jax.tokenization.config import TokenizerConfig
from transformer_jax.tokenization.specials import (
    DEFAULT_SPECIALS,
    MASK,
    SPECIAL_PIECES,
    UNK,
    WORDPIECE_SPECIAL_PIECES,
    WORDPIECE_SPECIALS,
    Frame,
)
from transformer_jax.tokenization.subword_sampling import (
    SPACE,
    BpeDropout,
    Resegmenter,
    StartsWord,
    UnigramSampling,
    starts_at_spaces,
)
from transformer_jax.tokenization.tokenizer import (
    StoredTokenizer,
    Vocabulary,
    begins_with_space,
)

BYTE_CHARACTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
"""Characters that represent the 256 bytes in pieces of kind "byte_bpe"."""

# GPT-2's code: printable bytes are written as themselves, the others as characters from 256 on.
_KEPT_BYTES = [byte for byte in range(256) if chr(byte) in BYTE_CHARACTERS]
_OTHER_BYTES = sorted({*range(256)}.difference(_KEPT_BYTES))
_BYTES = {character: ord(character) for character in map(chr, _KEPT_BYTES)}
_BYTES |= {chr(256 + i): byte for i, byte in enumerate(_OTHER_BYTES)}
"""Byte that each of `BYTE_CHARACTERS` represents."""

CONTINUATION_PREFIX = "##"
"""Prefix of the pieces of kind "wordpiece" that continue a word."""

WHITESPACE_PIECES = tuple("ĠĊĉčċČ")
"""Space, \\n, \\t, \\r, \\v and \\f in pieces of kind "byte_bpe"."""

MAX_CHARACTERS = 1000
"""A "wordpiece" vocabulary contains this many of the text's most frequent characters, or a quarter
of vocab_size if that is more. A word with any other character is unknown."""

MIN_FREQUENCY = 2
"""Training does not merge rarer pairs."""


class HuggingFaceTokenizer(StoredTokenizer):
    """A `Tokenizer` of kind "byte_bpe" or "wordpiece".

    With "byte_bpe", `decode(encode(text))` is `text` for any text. In its pieces "Ġ" is a space and
    "Ċ" a line break. "wordpiece" splits text at whitespace and punctuation, removes control
    characters (with `lowercase` also case and accents), and reads [MASK] as MASK. Decoding puts
    spaces between words, except before punctuation.
    """

    def __init__(self, model: bytes):
        """Loads the library's JSON, as trained here."""
        self._tokenizer = _from_json(model)
        super().__init__(model, huggingface_vocabulary(self._tokenizer))
        is_wordpiece = isinstance(self._tokenizer.model, models.WordPiece)
        self.specials = WORDPIECE_SPECIALS if is_wordpiece else DEFAULT_SPECIALS
        self._adds_space = is_wordpiece

    def library_tokenizer(self) -> tokenizers.Tokenizer:
        """Copy of the library's own tokenizer object."""
        return tokenizers.Tokenizer.from_str(self._tokenizer.to_str())


def huggingface_vocabulary(tokenizer: tokenizers.Tokenizer) -> Vocabulary:
    """The functions of a tokenizer, which no longer pads or truncates."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()

    @cache
    def plain() -> tokenizers.Tokenizer:
        copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        copy.encode_special_tokens = True  # as ordinary characters
        return copy

    return Vocabulary(
        pieces=pieces_by_id(ids),
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        encode_plain=lambda text: plain().encode(text, add_special_tokens=False).ids,
        decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
        special=[i for i, token in added.items() if token.special],
        frame=_frame(tokenizer),
        begins_word=word_starts(tokenizer),
        make_resegmenter=lambda: huggingface_resegmenter(tokenizer),
    )


def _frame(tokenizer: tokenizers.Tokenizer) -> Frame | None:
    """Special tokens that the post-processor adds to one text and to a pair."""
    if tokenizer.post_processor is None:
        return None
    # The sequence id of a token is 0 in the first text, 1 in the second, None for a special token.
    single = tokenizer.encode("a")
    pair = tokenizer.encode("a", "a")
    if 0 not in single.sequence_ids or 1 not in pair.sequence_ids:
        return None
    head = single.ids[: single.sequence_ids.index(0)]
    tail = single.ids[len(single) - single.sequence_ids[::-1].index(0) :]
    end_of_first = len(pair) - pair.sequence_ids[::-1].index(0)
    between = pair.ids[end_of_first : pair.sequence_ids.index(1)]
    return Frame(tuple(head), tuple(tail), tuple(between)) if head or tail else None


def pieces_by_id(vocab: Mapping[str, int]) -> list[str | None]:
    """Pieces in the order of their ids; None for ids without a piece."""
    by_id = {i: piece for piece, i in vocab.items()}
    return [by_id.get(i) for i in range(1 + max(by_id))]


def word_starts(tokenizer: tokenizers.Tokenizer) -> Callable[[str], bool]:
    """Function that returns True for a piece that begins a word: by the whitespace in it or, for
    WordPiece and others, as it does not continue a word."""
    # Either may be a sequence of several, and a file may lack the decoder. A state is JSON.
    steps = (tokenizer.pre_tokenizer, tokenizer.decoder)
    if any(step is not None and b'"ByteLevel"' in step.__getstate__() for step in steps):
        return lambda piece: piece.startswith(WHITESPACE_PIECES)
    has_spaces = any(piece.startswith(SPACE) for piece in tokenizer.get_vocab())
    if has_spaces and not isinstance(tokenizer.model, models.WordPiece):
        return begins_with_space
    return lambda piece: not piece.startswith(CONTINUATION_PREFIX)


def huggingface_resegmenter(tokenizer: tokenizers.Tokenizer) -> Resegmenter | None:
    """The `Resegmenter` of a tokenizer; None if its model is neither byte-pair encoding nor
    unigram."""
    model = json.loads(tokenizer.to_str())["model"]
    not_text = {*tokenizer.get_added_tokens_decoder()}
    segmenter: BpeDropout | UnigramSampling
    if model["type"] == "Unigram":
        not_text.add(model["unk_id"])
        scores = {
            piece: score for i, (piece, score) in enumerate(model["vocab"]) if i not in not_text
        }
        ids = {piece: i for i, (piece, _) in enumerate(model["vocab"]) if i not in not_text}
        segmenter = UnigramSampling(ids, scores)
    elif model["type"] == "BPE" and not (
        model["continuing_subword_prefix"] or model["end_of_word_suffix"]
    ):
        ids = {piece: i for piece, i in model["vocab"].items() if i not in not_text}
        segmenter = BpeDropout(ids, {(a, b): rank for rank, (a, b) in enumerate(model["merges"])})
    else:
        return None
    is_byte_level = all(character in ids for character in BYTE_CHARACTERS)
    starts = _starts_of_bytes(tokenizer) if is_byte_level else starts_at_spaces
    return Resegmenter(segmenter, starts)


def _starts_of_bytes(tokenizer: tokenizers.Tokenizer) -> StartsWord:
    """Implements `StartsWord` with the words of a byte-level pre-tokenizer."""

    def starts_word(pieces: Sequence[str]) -> list[bool]:
        first, stop = _whole_characters(pieces)
        written = "".join(pieces[first:stop])
        text = bytes(map(_BYTES.__getitem__, written)).decode()
        words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        if "".join(words) != written:  # each token is a word
            return [True] * len(pieces)
        starts = {0, *accumulate(map(len, words))}
        ends = accumulate(map(len, pieces[first:stop]), initial=0)
        inside = [end in starts for end in ends][:-1]
        return [True] * first + inside + [True] * (len(pieces) - stop)

    return starts_word


def _whole_characters(pieces: Sequence[str]) -> tuple[int, int]:
    """Range of the pieces without the first and the last ones that hold parts of characters, as
    where running text is cut."""
    first = 0
    # UTF-8: bytes from 80 to bf continue a character, which has at most four.
    while first < len(pieces) and 0x80 <= _BYTES[pieces[first][0]] < 0xC0:
        first += 1
    for stop in range(len(pieces), max(first, len(pieces) - 4), -1):
        with contextlib.suppress(UnicodeDecodeError):
            bytes(map(_BYTES.__getitem__, "".join(pieces[first:stop]))).decode()
            return first, stop
    return first, first


def byte_bpe(
    vocab: Mapping[str, int], merges: Sequence[tuple[str, str]], add_prefix_space: bool = False
) -> tokenizers.Tokenizer:
    """GPT-2's byte-level BPE. It never reads special tokens in a text."""
    tokenizer = tokenizers.Tokenizer(models.BPE(dict(vocab), list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def wordpiece(
    vocab: Mapping[str, int], unknown: str = WORDPIECE_SPECIAL_PIECES[UNK], **normalization: Any
) -> tokenizers.Tokenizer:
    """BERT's WordPiece. It never reads special tokens in a text.

    Args:
      vocab: piece -> id.
      unknown: piece of unknown words.
      normalization: options of `normalizers.BertNormalizer`.
    """
    tokenizer = tokenizers.Tokenizer(models.WordPiece(dict(vocab), unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(**normalization)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION_PREFIX)
    return tokenizer


def _wordpiece_with_mask(vocab: Mapping[str, int], lowercase: bool) -> tokenizers.Tokenizer:
    """WordPiece that reads "[MASK]" in a text as the special token. Training does not, to learn its
    characters like any others."""
    tokenizer = wordpiece(vocab, lowercase=lowercase)
    tokenizer.add_special_tokens([WORDPIECE_SPECIAL_PIECES[MASK]])
    return tokenizer


def _from_json(model: bytes) -> tokenizers.Tokenizer:
    content = json.loads(model)
    vocab = content["model"]["vocab"]
    if content["model"]["type"] == "WordPiece":
        return _wordpiece_with_mask(vocab, content["normalizer"]["lowercase"])
    return byte_bpe(vocab, list(map(tuple, content["model"]["merges"])))


def train_byte_bpe(config: TokenizerConfig, texts: Sequence[str], name: str) -> bytes:
    """Trains byte-level BPE; see `TokenizerKind.train`. Every text and every valid size works."""
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=list(SPECIAL_PIECES),
        initial_alphabet=BYTE_CHARACTERS,
        show_progress=False,
    )
    vocab = {piece: i for i, piece in enumerate([*SPECIAL_PIECES, *BYTE_CHARACTERS])}
    model = _train(byte_bpe(vocab, []), trainer, texts)
    return byte_bpe(model["vocab"], list(map(tuple, model["merges"]))).to_str().encode()


def train_wordpiece(config: TokenizerConfig, texts: Sequence[str], name: str) -> bytes:
    """Trains WordPiece; see `TokenizerKind.train`. The library learns the vocabulary by BPE."""
    vocab = {piece: i for i, piece in enumerate(WORDPIECE_SPECIAL_PIECES)}
    untrained = wordpiece(vocab, lowercase=config.lowercase)
    characters, continuing = _alphabet(
        untrained, texts, max(MAX_CHARACTERS, config.vocab_size // 4)
    )
    always_in = [*WORDPIECE_SPECIAL_PIECES, *characters, *continuing]
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
        # By default the library numbers continuing characters in hash order, which differs between
        # processes, and breaks ties by these numbers.
        special_tokens=always_in,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        continuing_subword_prefix=CONTINUATION_PREFIX,
        show_progress=False,
    )
    model = _train(untrained, trainer, texts)
    return _wordpiece_with_mask(model["vocab"], config.lowercase).to_str().encode()


def _train(
    tokenizer: tokenizers.Tokenizer, trainer: trainers.Trainer, texts: Sequence[str]
) -> dict[str, Any]:
    """Trains a tokenizer; returns the section "model" of its JSON."""
    with _single_threaded():
        tokenizer.train_from_iterator(texts, trainer)
    return json.loads(tokenizer.to_str())["model"]


@contextlib.contextmanager
def _single_threaded() -> Iterator[None]:
    """Keeps the library from using threads: after that it warns at every fork of the process."""
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
    """Finds the most frequent characters: at most `limit`, and "##" with those inside words."""
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
    frequent = sorted(counts, key=lambda character: (-counts[character], character))[:limit]
    continuing = [CONTINUATION_PREFIX + character for character in sorted(inner & {*frequent})]
    return sorted(frequent), continuing
