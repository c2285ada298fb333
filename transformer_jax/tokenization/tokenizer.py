"""A trained tokenizer."""

import re
from collections.abc import Iterable, Sequence

import sentencepiece

from transformer_jax.tokenization.specials import BOS, EOS, NUM_SPECIALS, PAD, UNK

_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """Text to token ids and back. Immutable; pickles whole, so that data workers can hold it.

    Text is normalised on its way in (NFKC; runs of white space become one space, those at the ends
    none; zero-width and control characters go). Of text so normalised, `decode(encode(text))` is
    `text` unless it holds unknown characters.
    """

    def __init__(self, model: bytes):
        """Loads a serialized sentencepiece model; ValueError if it is none, or not one of ours."""
        if not model:  # sentencepiece would load it, with a vocabulary of 0
            raise ValueError("the tokenizer model is empty")
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ValueError("this is no sentencepiece model") from error
        p = self._processor
        if (p.pad_id(), p.unk_id(), p.bos_id(), p.eos_id()) != (PAD, UNK, BOS, EOS):
            raise ValueError(f"the model's ids of pad, unk, bos, eos are not 0 to {EOS}")

    @property
    def vocab_size(self) -> int:
        """Number of token ids, the specials included."""
        return self._processor.get_piece_size()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without BOS or EOS; a text of white space has none."""
        # Half a UTF-16 pair (JSON can hold one) is no character: sentencepiece cannot take it.
        return self._processor.encode(_LONE_SURROGATES.sub("\ufffd", text))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of all ids; special tokens, unknown included, leave nothing in it."""
        return self._processor.decode([int(i) for i in ids if i >= NUM_SPECIALS])

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each id as its vocabulary entry, for people to read; "▁" stands for a space."""
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def count_unknown(self, ids: Sequence[int]) -> int:
        """How many of the ids are UNK."""
        return sum(1 for i in ids if i == UNK)
