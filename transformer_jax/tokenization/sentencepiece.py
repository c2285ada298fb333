"""A tokenizer trained by sentencepiece."""

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, normalizers, pre_tokenizers

from transformer_jax.errors import UserError
from transformer_jax.tokenization.config import TokenizerConfig
from transformer_jax.tokenization.specials import BOS, EOS, NUM_SPECIALS, OWN, PAD, PIECES, UNK
from transformer_jax.tokenization.tokenizer import encode_each, well_formed, word_starts

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


# FOLDED tokenization.sentencepiece_conversion: A sentencepiece model as a tokenizer of Hugging
# Face's library, which gives the same ids.


_UNIGRAM, _BPE, _WORD, _CHAR = range(1, 5)  # TrainerSpec.ModelType
_NORMAL, _BYTE = 1, 6  # SentencePiece.Type
_SPACE = "▁"


def converted(model: bytes) -> tokenizers.Tokenizer:
    """The tokenizer of a serialized sentencepiece model, without special tokens around a text.

    Raises:
      ValueError: it is of kind "word", which joins unknown words as no other tokenizer does.
    """
    proto: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    proto.ParseFromString(model)
    tokenizer = tokenizers.Tokenizer(_model(proto))
    spec = proto.normalizer_spec
    steps: list[Any] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(tokenizers.Regex(" +"), " "), normalizers.Strip()]
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if spec.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, scheme, split=True)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(_SPACE, scheme, split=True), decoders.Fuse()]
    )
    return tokenizer


def _model(proto: Any) -> models.Model:
    kind, spec = proto.trainer_spec.model_type, proto.trainer_spec
    pieces = [piece.piece for piece in proto.pieces]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    if kind == _UNIGRAM:
        scored = [(piece.piece, piece.score) for piece in proto.pieces]
        return models.Unigram(scored, unk_id=spec.unk_id, byte_fallback=spec.byte_fallback)
    if kind in (_BPE, _CHAR):
        return models.BPE(
            vocab,
            _merges(proto, vocab) if kind == _BPE else [],
            unk_token=pieces[spec.unk_id],
            fuse_unk=True,
            byte_fallback=spec.byte_fallback,
        )
    raise ValueError("tokenizer.kind 'word' has no counterpart in Hugging Face's tokenizers")


def _merges(proto: Any, vocab: Mapping[str, int]) -> Sequence[tuple[str, str]]:
    """What joins into each piece, the best pieces first: their scores rank them."""
    ranked = sorted(proto.pieces, key=lambda piece: -piece.score)
    normal = {piece.piece for piece in proto.pieces if piece.type == _NORMAL}
    return [
        (piece.piece[:i], piece.piece[i:])
        for piece in ranked
        if piece.type == _NORMAL
        for i in range(1, len(piece.piece))
        if piece.piece[:i] in normal and piece.piece[i:] in normal
    ]


# FOLDED tokenization.sentencepiece_training: Trains one sentencepiece model.


_TOO_HIGH = re.compile(r"Vocabulary size too high \(\d+\)\. Please set it to a value <= (\d+)")
_TOO_LOW = re.compile(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)")

_REFUSED = str.maketrans({"\0": " ", "\u2585": " "})
"""Characters that get no token; a text that holds the second would be left out whole."""


def train_sentencepiece(config: TokenizerConfig, texts: Sequence[str], name: str) -> bytes:
    """The serialized model.

    Raises:
      UserError: with `name` in it: the texts do not fit `vocab_size`.
    """
    keeps_white_space = config.keeps_white_space
    # Line breaks at the end of a text would be stripped; the special token keeps them, and is not
    # learned itself.
    end = PIECES[EOS] if keeps_white_space else ""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(text.translate(_REFUSED) + end for text in texts),
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            hard_vocab_limit=config.kind in ("bpe", "unigram"),
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name=config.normalization,
            add_dummy_prefix=not keeps_white_space,
            remove_extra_whitespaces=not keeps_white_space,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            pad_piece=PIECES[PAD],
            unk_piece=PIECES[UNK],
            bos_piece=PIECES[BOS],
            eos_piece=PIECES[EOS],
            # Longer texts would be left out silently.
            max_sentence_length=2**30,
            # The order of the sum in unigram's E-step, and so the vocabulary, depends on it.
            num_threads=4,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(_explain(str(error), config, name)) from error
    return model.getvalue()


def _explain(message: str, config: TokenizerConfig, name: str) -> str:
    asked = f"tokenizer.vocab_size {config.vocab_size} is too"
    if found := _TOO_HIGH.search(message):
        return f"{asked} large: the {name} text allows at most {found[1]} with {config.kind}"
    if found := _TOO_LOW.search(message):
        return (
            f"{asked} small: the characters of the {name} text alone need {found[1]}; "
            "ask for more, or lower tokenizer.character_coverage"
        )
    return f"sentencepiece could not train the {name} tokenizer: {' '.join(message.split())}"
