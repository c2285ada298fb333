# SPDX-License-Identifier: Apache-2.0
"""Writes a run's tokenizers as the files that Hugging Face's `transformers` loads."""

import json
from collections.abc import Iterable
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from transformer_jax.tokenization.huggingface import HuggingFaceTokenizer
from transformer_jax.tokenization.published import PublishedTokenizer
from transformer_jax.tokenization.sentencepiece import SentencePieceTokenizer, parse_model
from transformer_jax.tokenization.specials import Frame
from transformer_jax.tokenization.subword_sampling import SPACE, BpeDropout
from transformer_jax.tokenization.tokenizer import Tokenizer
from transformer_jax.tokenization.vocabularies import ExtendedTokenizer, Tokenizers

Files = dict[str, bytes]
"""File name -> content."""

_CONFIG = "tokenizer_config.json"
_COMMON = {"clean_up_tokenization_spaces": False}

# sentencepiece's TrainerSpec.ModelType
_UNIGRAM = 1
_BPE = 2
_CHAR = 4


def transformers_files(sides: Tokenizers, architecture: str) -> Files:
    """Tokenizer files of a run. With them transformers adds the run's special tokens to a text.

    Args:
      sides: tokenizers of the run.
      architecture: "encoder_decoder", "encoder_only" or "decoder_only".

    Raises:
      ValueError: transformers has no equivalent tokenizer.
    """
    if "text" in sides.sides:
        tokenizer = sides.text("text")
        if isinstance(tokenizer, PublishedTokenizer):
            return dict(tokenizer.files)
        specials = tokenizer.specials
        if architecture != "decoder_only":
            return _tokenizer_json_files(tokenizer, specials.encoder)
        frame = Frame((specials.first,), ())
        return _tokenizer_json_files(tokenizer, frame, bos_token=specials.first)
    source = sides.text("source")
    target = sides.text("target")
    if isinstance(source, PublishedTokenizer):
        return dict(source.files)
    if source is target:
        try:
            return _tokenizer_json_files(source, source.specials.translation)
        except ValueError:  # kind "word": only sentencepiece itself can run it
            pass
    return _marian_files(source, target)


def _tokenizer_json_files(tokenizer: Tokenizer, frame: Frame, **overrides: int) -> Files:
    """tokenizer.json and its config.

    Args:
      frame: special tokens that transformers adds to a text.
      overrides: ids of special tokens by transformers' names, in place of the tokenizer's own.
    """
    library = _library_tokenizer(tokenizer)
    names = _special_token_names(tokenizer)
    library.add_special_tokens(_added_tokens(tokenizer, dict.fromkeys(names.values())))
    library.post_processor = _post_processor(tokenizer, frame)
    names |= {name: tokenizer.pieces([i])[0] for name, i in overrides.items()}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names, **_COMMON}
    return {"tokenizer.json": library.to_str(pretty=True).encode(), _CONFIG: json_file(config)}


def _marian_files(source: Tokenizer, target: Tokenizer) -> Files:
    """Marian's format: a sentencepiece model and a vocabulary for each side."""
    if not (
        isinstance(source, SentencePieceTokenizer) and isinstance(target, SentencePieceTokenizer)
    ):
        raise ValueError(
            "transformers can load separate source and target vocabularies (tokenizer.joint "
            "false) only for tokenizer.kind bpe, unigram, char and word"
        )
    names = _special_token_names(source)
    config = {
        "tokenizer_class": "MarianTokenizer",
        **{name: names[name] for name in ("pad_token", "unk_token", "eos_token")},
        "separate_vocabs": True,
        **_COMMON,
    }
    files = {"source.spm": source.content, "target.spm": target.content}
    for name, tokenizer in {"vocab.json": source, "target_vocab.json": target}.items():
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        files[name] = json_file({piece: i for i, piece in enumerate(pieces)})
    return {**files, _CONFIG: json_file(config)}


def _library_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    if isinstance(tokenizer, ExtendedTokenizer):
        library = _library_tokenizer(tokenizer.base)
        added = tokenizer.pieces(range(tokenizer.base.vocab_size, tokenizer.vocab_size))
        library.add_special_tokens(_added_tokens(tokenizer, added))
        return library
    if isinstance(tokenizer, SentencePieceTokenizer):
        return _convert_sentencepiece(tokenizer)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return tokenizer.library_tokenizer()
    raise ValueError(f"transformers has no equivalent of a {type(tokenizer).__name__}")


def _added_tokens(tokenizer: Tokenizer, pieces: Iterable[str]) -> list[tokenizers.AddedToken]:
    """Special tokens, each with the space before it if the tokenizer reads both as one token."""
    return [
        tokenizers.AddedToken(p, normalized=False, lstrip=len(tokenizer.encode(f" {p}")) == 1)
        for p in pieces
    ]


def _special_token_names(tokenizer: Tokenizer) -> dict[str, str]:
    """transformers' name of each special token -> its piece."""
    specials = tokenizer.specials
    head = specials.encoder.head
    tail = specials.encoder.tail
    ids: dict[str, int | None] = {
        "pad_token": specials.pad,
        "unk_token": specials.unk,
        "bos_token": specials.start,
        "eos_token": specials.eos,
        "cls_token": head[0] if specials.mask is not None and head else None,
        "sep_token": tail[0] if specials.mask is not None and tail else None,
        "mask_token": specials.mask,
    }
    return {name: tokenizer.pieces([i])[0] for name, i in ids.items() if i is not None}


def _post_processor(tokenizer: Tokenizer, frame: Frame) -> Any:
    """Post-processor that adds the frame's tokens to a text or a pair of texts."""

    def pieces(ids: tuple[int, ...], type_id: int = 0) -> list[str]:
        return [f"{piece}:{type_id}" for piece in tokenizer.pieces(ids)]

    used = dict.fromkeys((*frame.head, *frame.between, *frame.tail))
    single = [*pieces(frame.head), "$A:0", *pieces(frame.tail)]
    pair = [*pieces(frame.head), "$A:0", *pieces(frame.between), "$B:1", *pieces(frame.tail, 1)]
    special = [(tokenizer.pieces([i])[0], i) for i in used]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


def json_file(content: Any) -> bytes:
    """Content of a JSON file as transformers writes it."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _convert_sentencepiece(sentencepiece: SentencePieceTokenizer) -> tokenizers.Tokenizer:
    """Tokenizer of the library `tokenizers` that gives the same ids.

    Raises:
      ValueError: the model is of kind "word". It joins neighboring unknown words, which the library
        cannot do.
    """
    proto = parse_model(sentencepiece.content)
    tokenizer = tokenizers.Tokenizer(_library_model(sentencepiece, proto))
    spec = proto.normalizer_spec
    steps = _normalization(spec.precompiled_charsmap)
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(tokenizers.Regex(" +"), " "), normalizers.Strip()]
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if spec.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=True)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(SPACE, scheme, split=True), decoders.Fuse()]
    )
    return tokenizer


def _normalization(charsmap: bytes) -> list[Any]:
    """Steps of the library's normalizer that replace text as sentencepiece's table does.

    sentencepiece replaces the longest match. `Precompiled` looks up a grapheme, or its characters
    if it is long: decomposed text stays so, and capitals lose their marks. Hence the steps around
    it. Results are equal for all characters of Unicode, also decomposed, and half-width kana; not
    for several accents on one letter in an unusual order.
    """
    if not charsmap:
        return []
    precompiled = normalizers.Precompiled(charsmap)
    if precompiled.normalize_str("ﬁ") != "fi":  # no NFKC: the table has nothing but lower case
        return [normalizers.Lowercase()]
    if precompiled.normalize_str("A") == "a":  # NFKC and lower case
        return [normalizers.NFC(), normalizers.Lowercase(), precompiled]
    return [normalizers.NFC(), precompiled, normalizers.NFC()]


def _library_model(sentencepiece: SentencePieceTokenizer, proto: Any) -> models.Model:
    spec = proto.trainer_spec
    kind = spec.model_type
    pieces = [piece.piece for piece in proto.pieces]
    if kind == _UNIGRAM:
        scored = [(piece.piece, piece.score) for piece in proto.pieces]
        return models.Unigram(scored, unk_id=spec.unk_id, byte_fallback=spec.byte_fallback)
    if kind not in (_BPE, _CHAR):
        raise ValueError("tokenizer.kind 'word' has no counterpart in Hugging Face's tokenizers")
    resegmenter = sentencepiece.resegmenter
    assert resegmenter
    segmenter = resegmenter.segmenter
    return models.BPE(
        {piece: i for i, piece in enumerate(pieces)},
        list(segmenter.ranks) if isinstance(segmenter, BpeDropout) else [],
        unk_token=pieces[spec.unk_id],
        fuse_unk=True,
        byte_fallback=spec.byte_fallback,
    )
