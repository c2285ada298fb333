"""A sentencepiece model as a tokenizer of Hugging Face's library, which gives the same ids."""

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, normalizers, pre_tokenizers

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
