"""A tokenizer trained by sentencepiece."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import sentencepiece

from transformer_jax.tokenization.characters import well_formed
from transformer_jax.tokenization.specials import BOS, EOS, NUM_SPECIALS, OWN, PAD, UNK
from transformer_jax.tokenization.tokenizer import encode_each, word_starts

_KEPT_WORDS = 1 << 17  # some 30 MB; nearly all words of running text are among them


class SentencePieceTokenizer:
    """A `Tokenizer` of kind "bpe", "unigram", "char" or "word"; in its pieces "▁" is a space.

    With normalization "nmt_nfkc", text is first normalised (NFKC; runs of white space become one
    space, or none at the ends; zero-width and control characters are removed); for normalised text
    without unknown characters, `decode(encode(text))` is `text`. With "identity" this holds for all
    text, except that "▁" itself (U+2581) is read as a space.
    """

    specials = OWN

    def __init__(self, model: bytes):
        """Loads a serialized sentencepiece model.

        Raises:
          ValueError: it is none, or not one that was trained here.
        """
        p = self._processor = load_sentencepiece(model)
        if (p.pad_id(), p.unk_id(), p.bos_id(), p.eos_id()) != (PAD, UNK, BOS, EOS):
            raise ValueError(f"the model's ids of pad, unk, bos, eos are not 0 to {EOS}")
        try:
            self._pieces: list[str] = p.id_to_piece(list(range(p.get_piece_size())))
        except UnicodeDecodeError as error:
            raise ValueError("the model has a piece that is no text") from error
        self._words = _Words(self._encode_whole)

    def __reduce__(self) -> tuple[type["SentencePieceTokenizer"], tuple[bytes]]:
        return SentencePieceTokenizer, (self.model,)

    @property
    def model(self) -> bytes:
        """As sentencepiece stores it."""
        return self._processor.serialized_model_proto()

    @property
    def vocab_size(self) -> int:
        """Number of token ids, the specials included."""
        return self._processor.get_piece_size()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with nothing around it; with "nmt_nfkc" none for white space alone."""
        if not self._words_alone:
            return self._encode_whole(text)
        ids: list[int] = []
        for word in text.split(" "):
            ids += self._words[word]
        return ids

    def _encode_whole(self, text: str) -> list[int]:
        return self._processor.encode(well_formed(text))

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word by itself, at least one; see `Tokenizer`."""
        return encode_each(words, self, separator=" " if self._keeps_white_space else "")

    def decode(self, ids: Iterable[int]) -> str:
        """The text of all ids; special tokens, unknown included, leave nothing in it."""
        return self._processor.decode([int(i) for i in ids if i not in self.specials.ids])

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each id as its vocabulary entry, for people to read; "▁" stands for a space."""
        return [self._pieces[i] for i in ids]

    def starts_word(self, ids: Iterable[int]) -> list[bool]:
        """Whether each id begins a word, or the white space before it; see `Tokenizer`."""
        return word_starts(ids, self._begins, self.specials.ids)

    def count_unknown(self, ids: Iterable[int]) -> int:
        """How many of the ids are UNK."""
        return sum(1 for i in ids if i == UNK)

    @cached_property
    def _keeps_white_space(self) -> bool:
        """Whether white space is text like any other; else a space is added before each text."""
        return self._processor.normalize(" ") != ""

    @cached_property
    def _words_alone(self) -> bool:
        """Whether the ids of a text are those of its words, one after another.

        So they are in byte-pair encoding where no piece goes on behind a space. (In "unigram" the
        rounding of a long sum may decide between pieces; in "word" unknown words become one.)
        """
        ids = range(NUM_SPECIALS, self.vocab_size)
        ranks_merges = all(self._processor.get_score(i).is_integer() for i in ids)
        return (
            ranks_merges
            and not self._keeps_white_space
            and not any("▁" in piece[1:] for piece in self.pieces(ids))
        )

    @cached_property
    def _begins(self) -> list[bool]:
        return [piece.startswith("▁") or piece[:1].isspace() for piece in self._pieces]


def load_sentencepiece(content: bytes) -> sentencepiece.SentencePieceProcessor:
    """Raises ValueError where the content is no model."""
    if not content:  # sentencepiece would load it, with a vocabulary of 0
        raise ValueError("the tokenizer model is empty")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        raise ValueError("this is no sentencepiece model") from error


class _Words(dict[str, tuple[int, ...]]):
    """The ids of words, each encoded when it is first met. Emptied when there are too many."""

    def __init__(self, encode: Callable[[str], list[int]]):
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> tuple[int, ...]:
        if len(self) >= _KEPT_WORDS:
            self.clear()
        ids = self[word] = tuple(self._encode(word))
        return ids
