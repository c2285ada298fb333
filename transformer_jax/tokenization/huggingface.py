"""A tokenizer trained by Hugging Face's library `tokenizers`, in that library's JSON format.

Of a file only the vocabulary, the merges and `lowercase` are read, and checked; all else is built
here, so that no file decides how text is processed.
"""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from transformer_jax.errors import UserError
from transformer_jax.tokenization import specials
from transformer_jax.tokenization.config import TokenizerConfig
from transformer_jax.tokenization.specials import PIECES, UNK, WORDPIECE_PIECES
from transformer_jax.tokenization.tokenizer import encode_each, well_formed, word_starts

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
"""The characters that stand for the 256 bytes in pieces of kind "byte_bpe"."""

CONTINUED = "##"
"""How a piece of kind "wordpiece" begins that begins no word."""

WHITE_BYTES = tuple("ĠĊĉčċČ")
"""How pieces of kind "byte_bpe" write space, \\n, \\t, \\r, \\v and \\f."""


class HuggingFaceTokenizer:
    """A `Tokenizer` of kind "byte_bpe" or "wordpiece".

    With "byte_bpe", `decode(encode(text))` is `text` for any text; in its pieces "Ġ" is a space and
    "Ċ" a line break. "wordpiece" splits text at white space and punctuation, removes control
    characters (with `lowercase` also case and accents), and reads [MASK] as MASK; decoding puts
    spaces between words and removes those before punctuation.
    """

    def __init__(self, model: bytes):
        """Loads a JSON file of `tokenizers`.

        Raises:
          ValueError: it is none, or not one that was trained here.
        """
        self._model = model
        self._tokenizer = _from_json(model)
        vocab = self._tokenizer.get_vocab()
        self._pieces = sorted(vocab, key=lambda piece: vocab[piece])
        if isinstance(self._tokenizer.model, models.WordPiece):
            self.specials, self._separator = specials.OWN_WORDPIECE, ""
            self._begins = [not piece.startswith(CONTINUED) for piece in self._pieces]
        else:
            self.specials, self._separator = specials.OWN, " "
            self._begins = [piece.startswith(WHITE_BYTES) for piece in self._pieces]

    def __reduce__(self) -> tuple[type["HuggingFaceTokenizer"], tuple[bytes]]:
        return HuggingFaceTokenizer, (self._model,)

    def library_tokenizer(self) -> tokenizers.Tokenizer:
        """A copy of what the library runs."""
        return tokenizers.Tokenizer.from_str(self._tokenizer.to_str())

    @property
    def vocab_size(self) -> int:
        """Number of token ids, the specials included."""
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with nothing around it."""
        return self._tokenizer.encode(well_formed(text), add_special_tokens=False).ids

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word by itself, at least one; see `Tokenizer`."""
        return encode_each(words, self, self._separator)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of all ids; special tokens, MASK and unknown included, leave nothing in it."""
        ordinary = [int(i) for i in ids if i not in self.specials.ids]
        return self._tokenizer.decode(ordinary, skip_special_tokens=False)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each id as its vocabulary entry, for people to read."""
        return [self._pieces[i] for i in ids]

    def starts_word(self, ids: Iterable[int]) -> list[bool]:
        """Whether each id begins a word, or the white space before it; see `Tokenizer`."""
        return word_starts(ids, self._begins, self.specials.ids)

    def count_unknown(self, ids: Iterable[int]) -> int:
        """How many of the ids are UNK; of kind "byte_bpe" none ever is."""
        return sum(1 for i in ids if i == UNK)


def byte_bpe(vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> tokenizers.Tokenizer:
    """GPT-2's byte-level BPE; no special token is known to it, whatever stands in a text."""
    tokenizer = tokenizers.Tokenizer(models.BPE(dict(vocab), list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def wordpiece(
    vocab: Mapping[str, int], lowercase: bool, reads_mask: bool = True
) -> tokenizers.Tokenizer:
    """BERT's WordPiece.

    Args:
      vocab: piece -> id.
      lowercase: whether text loses case and accents.
      reads_mask: whether "[MASK]" in a text is the special token. Training would learn it as a
        word. Other special tokens are never read.
    """
    unknown, mask = specials.WORDPIECE_PIECES[UNK], specials.WORDPIECE_PIECES[specials.MASK]
    tokenizer = tokenizers.Tokenizer(models.WordPiece(dict(vocab), unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUED)
    if reads_mask:
        tokenizer.add_special_tokens([mask])
    return tokenizer


def _from_json(model: bytes) -> tokenizers.Tokenizer:
    try:
        return _built(json.loads(model))
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"this is no tokenizer file that can be read ({reason})") from error


def _built(content: Mapping) -> tokenizers.Tokenizer:
    """Raises one of many errors where the content is not of the expected form."""
    kind, vocab = content["model"]["type"], content["model"]["vocab"]
    if kind == "WordPiece":
        _check_vocabulary(vocab, specials.WORDPIECE_PIECES)
        return wordpiece(vocab, lowercase=content["normalizer"]["lowercase"])
    if kind == "BPE":
        _check_vocabulary(vocab, specials.PIECES)
        merges = [(first, second) for first, second in content["model"]["merges"]]
        _check_merges(vocab, merges)
        return byte_bpe(vocab, merges)
    raise ValueError(f"its kind is {kind!r}")


def _check_vocabulary(vocab: Mapping[str, int], first: Sequence[str]) -> None:
    """Raises ValueError unless the ids are 0, 1, ... and those of special tokens come first."""
    if sorted(vocab.values()) != [*range(len(vocab))]:
        raise ValueError(f"the vocabulary's ids are not 0 to {len(vocab) - 1}")
    if any(vocab.get(piece) != i for i, piece in enumerate(first)):
        raise ValueError(f"the vocabulary's first ids are not those of {', '.join(first)}")


def _check_merges(vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> None:
    """Raises ValueError unless all bytes, and all that is merged, are in the vocabulary."""
    merged = (piece for a, b in merges for piece in (a, b, a + b))
    if any(piece not in vocab for piece in chain(BYTES, merged)):
        raise ValueError("the vocabulary lacks bytes, or pieces that are merged")


# FOLDED tokenization.huggingface_training: Trains byte-level BPE and WordPiece vocabularies with
# Hugging Face's library `tokenizers`.


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
