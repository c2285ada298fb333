# SPDX-License-Identifier: Apache-2.0
"""Tokenizer trained by the library `sentencepiece`: kinds "bpe", "unigram", "char" and "word"."""

import contextlib
import functools
import io
import re
import sys
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from transformer_jax.errors import UserError
from transformer_jax.tokenization.config import TokenizerConfig
from transformer_jax.tokenization.specials import (
    BOS,
    DEFAULT_SPECIALS,
    EOS,
    NUM_SPECIALS,
    PAD,
    SPECIAL_PIECES,
    UNK,
)
from transformer_jax.tokenization.subword_sampling import (
    BpeDropout,
    Resegmenter,
    UnigramSampling,
    starts_at_spaces,
)
from transformer_jax.tokenization.tokenizer import (
    StoredTokenizer,
    Vocabulary,
    replace_lone_surrogates,
)

_SPECIAL_TOKENS: dict[str, Any] = {
    **{"pad_id": PAD, "unk_id": UNK, "bos_id": BOS, "eos_id": EOS},
    **{f"{role}_piece": SPECIAL_PIECES[i] for i, role in enumerate(("pad", "unk", "bos", "eos"))},
}
"""Options of sentencepiece's trainer."""

_MAX_WORDS = 1 << 17  # about 30 MB; holds nearly all words of running text

_FEW_TEXTS = 16
"""Fewer texts are encoded one by one: a list of texts starts a thread, in the time of 4 to 10."""

_TOO_HIGH = re.compile(r"Vocabulary size too high \(\d+\)\. Please set it to a value <= (\d+)")
_TOO_LOW = re.compile(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)")

_REPLACED = str.maketrans({"\0": " ", "\u2585": " "})
"""Characters that sentencepiece gives no token. It would skip every text with the second one."""


class SentencePieceTokenizer(StoredTokenizer):
    """A `Tokenizer` of kind "bpe", "unigram", "char" or "word". In its pieces "▁" is a space.

    Normalization "nmt_nfkc" first normalizes text: NFKC; runs of whitespace become one space, and
    none at the ends; zero-width and control characters are removed. For normalized text without
    unknown characters, `decode(encode(text))` is `text`. With "identity" this holds for all text,
    except that "▁" itself (U+2581) is read as a space. A model trained with `lowercase` reads all
    text in lower case, so `decode` gives lower case.
    """

    specials = DEFAULT_SPECIALS

    def __init__(self, model: bytes):
        """Loads a serialized sentencepiece model.

        Raises:
          ValueError: `model` is not a sentencepiece model, or was not trained by this package.
        """
        p = load_sentencepiece(model)
        if (p.pad_id(), p.unk_id(), p.bos_id(), p.eos_id()) != (PAD, UNK, BOS, EOS):
            raise ValueError(f"the model's ids of pad, unk, bos, eos are not 0 to {EOS}")
        super().__init__(model, sentencepiece_vocabulary(p))
        self._processor = p
        self._adds_space = p.normalize(" ") == ""  # otherwise whitespace is kept as text
        self._word_ids: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. With "nmt_nfkc", text of whitespace alone has none."""
        return self.encode_batch([text])[0]

    def encode_plain(self, text: str) -> list[int]:
        return self.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text; words that are new in the batch are encoded together."""
        if not self._can_encode_by_word:
            return self._encode_texts(texts)
        texts_words = [text.split(" ") for text in texts]
        word_ids = self._ids_of({word for words in texts_words for word in words})
        encoded = []
        for words in texts_words:
            ids: list[int] = []
            for word in words:
                ids += word_ids[word]
            encoded.append(ids)
        return encoded

    def _ids_of(self, words: set[str]) -> Mapping[str, tuple[int, ...]]:
        """Ids of these words, among others."""
        word_ids = self._word_ids
        new = words.difference(word_ids)
        if len(word_ids) + len(new) > _MAX_WORDS:
            # Another dictionary, as other threads may read this one.
            word_ids = self._word_ids = {}
            new = words
        if new:
            # Of tuples of numbers, unlike lists, the garbage collector does not keep track.
            word_ids.update(zip(new, map(tuple, self._encode_texts([*new])), strict=True))
        return word_ids

    def _encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        valid = [replace_lone_surrogates(text) for text in texts]
        if len(valid) < _FEW_TEXTS:
            return [self._processor.encode(text) for text in valid]
        return self._processor.encode(valid, num_threads=1)

    @cached_property
    def _can_encode_by_word(self) -> bool:
        """True if the ids of a text are the ids of its words, concatenated.

        This holds for byte-pair encoding without pieces that contain a space after their start. It
        does not hold for "unigram", where rounding of a long sum may decide between pieces, nor for
        "word", which joins neighboring unknown words.
        """
        pieces = self.pieces(range(NUM_SPECIALS, self.vocab_size))
        return (
            _ranks_merges(_scores(self._processor))
            and self._adds_space
            and not any("▁" in piece[1:] for piece in pieces)
        )


def load_sentencepiece(content: bytes) -> sentencepiece.SentencePieceProcessor:
    """Loads a serialized model. Raises ValueError if it is damaged."""
    if not content:  # sentencepiece would load it, with a vocabulary of 0
        raise ValueError("the tokenizer model is empty")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        raise ValueError("this is no sentencepiece model") from error


def sentencepiece_vocabulary(processor: sentencepiece.SentencePieceProcessor) -> Vocabulary:
    """The functions of a model. They read no special token in a text."""
    pieces: list[str] = processor.id_to_piece(list(range(processor.get_piece_size())))
    return Vocabulary(
        pieces,
        processor.encode,
        processor.encode,
        processor.decode,
        make_resegmenter=lambda: sentencepiece_resegmenter(
            processor, {piece: i for i, piece in enumerate(pieces)}
        ),
    )


def sentencepiece_resegmenter(
    processor: sentencepiece.SentencePieceProcessor, ids: Mapping[str, int]
) -> Resegmenter:
    """The `Resegmenter` of a model.

    Args:
      processor: the model, of byte-pair encoding or unigram.
      ids: piece -> id of the tokens.
    """
    scores = {piece: score for piece, score in _scores(processor).items() if piece in ids}
    text_ids = {piece: ids[piece] for piece in scores}
    segmenter: BpeDropout | UnigramSampling
    if _ranks_merges(scores):
        segmenter = BpeDropout.from_scores(text_ids, scores)
    else:
        segmenter = UnigramSampling(text_ids, scores)
    return Resegmenter(segmenter, starts_at_spaces)


def _scores(processor: sentencepiece.SentencePieceProcessor) -> dict[str, float]:
    """Score of each piece that is ordinary text: a rank of byte-pair encoding, negative, or a
    log-probability."""
    p = processor
    return {
        p.id_to_piece(i): p.get_score(i)
        for i in range(p.get_piece_size())
        if not (p.is_control(i) or p.is_unknown(i) or p.is_unused(i) or p.is_byte(i))
    }


def _ranks_merges(scores: Mapping[str, float]) -> bool:
    """True for the scores of byte-pair encoding."""
    return all(score.is_integer() for score in scores.values())


def train_sentencepiece(config: TokenizerConfig, texts: Sequence[str], name: str) -> bytes:
    """Trains a model and returns it serialized; see `TokenizerKind.train`."""
    keeps_whitespace = config.keeps_whitespace
    # sentencepiece strips line breaks at the end of a text. A special token at the end protects
    # them, and is not learned itself.
    end = SPECIAL_PIECES[EOS] if keeps_whitespace else ""
    model = io.BytesIO()
    try:
        with _normalization_of(config) as normalization:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(text.translate(_REPLACED) + end for text in texts),
                model_writer=model,
                model_type=config.kind,
                vocab_size=config.vocab_size,
                hard_vocab_limit=config.kind in ("bpe", "unigram"),
                character_coverage=config.character_coverage,
                byte_fallback=config.byte_fallback,
                **normalization,
                add_dummy_prefix=not keeps_whitespace,
                remove_extra_whitespaces=not keeps_whitespace,
                **_SPECIAL_TOKENS,
                # sentencepiece skips longer texts silently.
                max_sentence_length=2**30,
                # Unigram's E-step sums per thread, so the vocabulary depends on their number.
                num_threads=4,
                minloglevel=2,
            )
    except RuntimeError as error:
        raise UserError(_training_error(str(error), config, name)) from error
    if not config.lowercase:
        return model.getvalue()
    proto = parse_model(model.getvalue())
    proto.normalizer_spec.ClearField("normalization_rule_tsv")  # the path of the table
    written: bytes = proto.SerializeToString(deterministic=True)
    return written


def parse_model(content: bytes) -> Any:
    """The message `ModelProto` of a serialized model."""
    return sentencepiece_model_pb2.ModelProto.FromString(content)  # type: ignore[attr-defined]


@contextlib.contextmanager
def _normalization_of(config: TokenizerConfig) -> Iterator[dict[str, Any]]:
    """Options of sentencepiece's trainer; those of lower case name a file that exists meanwhile."""
    if not config.lowercase:
        yield {"normalization_rule_name": config.normalization}
        return
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder) / "rules.tsv"
        rules.write_text(_lowercase_rules(config.normalization), "utf-8")
        yield {"normalization_rule_tsv": str(rules)}


@functools.cache  # a table takes seconds to make
def _lowercase_rules(normalization: str) -> str:
    """Table for sentencepiece's normalizer that normalizes text and then makes it lower case.

    A line has the code points of a text in hexadecimal, a tab, and those that replace them. A
    letter with combining accents is a text of its own. sentencepiece's own rules without case
    ("nmt_nfkc_cf") also replace ß by ss.
    """
    normalizer = sentencepiece.SentencePieceNormalizer(
        rule_name=normalization,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        escape_whitespaces=False,
    )
    characters = [chr(i) for i in range(1, sys.maxunicode + 1) if not 0xD800 <= i < 0xE000]
    decomposed = {unicodedata.normalize("NFD", character) for character in characters}
    lines = []
    for text in sorted({*characters, *decomposed}):
        lower = normalizer.normalize(text).lower()
        if lower != text:
            lines.append("\t".join(" ".join(f"{ord(c):X}" for c in part) for part in (text, lower)))
    return "\n".join(lines)


def _training_error(message: str, config: TokenizerConfig, name: str) -> str:
    problem = f"tokenizer.vocab_size {config.vocab_size} is too"
    too_high = _TOO_HIGH.search(message)
    if too_high:
        return f"{problem} large: the {name} text allows at most {too_high[1]} with {config.kind}"
    too_low = _TOO_LOW.search(message)
    if too_low:
        return (
            f"{problem} small: the characters of the {name} text alone need {too_low[1]}; "
            "ask for more, or lower tokenizer.character_coverage"
        )
    return f"sentencepiece could not train the {name} tokenizer: {' '.join(message.split())}"
