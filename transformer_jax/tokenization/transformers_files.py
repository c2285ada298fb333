"""The files that `transformers` reads a run's tokenizer from."""

import json
from typing import Any

import tokenizers
from tokenizers import processors

from transformer_jax.tokenization.huggingface import HuggingFaceTokenizer
from transformer_jax.tokenization.published import PublishedTokenizer
from transformer_jax.tokenization.sentencepiece import SentencePieceTokenizer, converted
from transformer_jax.tokenization.specials import Frame, SpecialTokens
from transformer_jax.tokenization.tokenizer import Tokenizer
from transformer_jax.tokenization.vocabularies import Tokenizers

Files = dict[str, bytes]
"""File name -> content."""

_CONFIG = "tokenizer_config.json"


def transformers_files(sides: Tokenizers, architecture: str) -> Files:
    """The files of a run's tokenizer, which put the same special tokens around a text.

    Args:
      sides: of the run.
      architecture: "encoder_decoder", "encoder_only" or "decoder_only".

    Raises:
      ValueError: no tokenizer of transformers does the same.
    """
    if architecture != "encoder_decoder":
        tokenizer = sides.text("text")
        if isinstance(tokenizer, PublishedTokenizer):
            return dict(tokenizer.files)
        specials = tokenizer.specials
        if architecture == "encoder_only":
            return _one_file(tokenizer, specials.encoder)
        return _one_file(tokenizer, Frame((specials.first,), ()), bos_token=specials.first)
    source, target = sides.text("source"), sides.text("target")
    if isinstance(source, PublishedTokenizer):
        return dict(source.files)
    if source is target:
        try:
            return _one_file(source, source.specials.translation)
        except ValueError:  # of kind "word", which sentencepiece alone reads
            pass
    return _two_files(source, target)


def _one_file(tokenizer: Tokenizer, frame: Frame, **named: int) -> Files:
    """With `frame` around a text; `named` are special tokens that differ from the usual ones."""
    library = _library_tokenizer(tokenizer)
    names = _names(tokenizer, tokenizer.specials)
    library.add_special_tokens(
        [tokenizers.AddedToken(piece, normalized=False) for piece in dict.fromkeys(names.values())]
    )
    library.post_processor = _template(tokenizer, frame)
    names |= {name: tokenizer.pieces([i])[0] for name, i in named.items()}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names, **_PLAIN}
    return {"tokenizer.json": library.to_str(pretty=True).encode(), _CONFIG: _json(config)}


def _two_files(source: Tokenizer, target: Tokenizer) -> Files:
    """As Marian has them: a model of sentencepiece and a vocabulary for each side."""
    sides = {"source": source, "target": target}
    if not all(isinstance(one, SentencePieceTokenizer) for one in sides.values()):
        raise ValueError(
            "a vocabulary for each side (tokenizer.joint) goes with sentencepiece's kinds"
        )
    files = {f"{side}.spm": one.model for side, one in sides.items()}  # type: ignore[attr-defined]
    vocabularies = {
        side: {piece: i for i, piece in enumerate(one.pieces(range(one.vocab_size)))}
        for side, one in sides.items()
    }
    names = _names(source, source.specials)
    config = {
        "tokenizer_class": "MarianTokenizer",
        **{name: names[name] for name in ("pad_token", "unk_token", "eos_token")},
        "separate_vocabs": True,
        **_PLAIN,
    }
    files |= {"vocab.json": _json(vocabularies["source"])}
    files |= {"target_vocab.json": _json(vocabularies["target"]), _CONFIG: _json(config)}
    return files


_PLAIN = {"clean_up_tokenization_spaces": False}


def _library_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    if isinstance(tokenizer, SentencePieceTokenizer):
        return converted(tokenizer.model)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return tokenizer.library_tokenizer()
    raise ValueError(f"a {type(tokenizer).__name__} is none that transformers has")


def _names(tokenizer: Tokenizer, specials: SpecialTokens) -> dict[str, str]:
    """The special tokens by transformers' names for them."""
    head, tail = specials.encoder.head, specials.encoder.tail
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


def _template(tokenizer: Tokenizer, frame: Frame) -> Any:
    """What puts a frame around a text, or a pair of texts."""

    def words(ids: tuple[int, ...], number: int = 0) -> list[str]:
        return [f"{piece}:{number}" for piece in tokenizer.pieces(ids)]

    used = dict.fromkeys((*frame.head, *frame.between, *frame.tail))
    single = [*words(frame.head), "$A:0", *words(frame.tail)]
    pair = [*words(frame.head), "$A:0", *words(frame.between), "$B:1", *words(frame.tail, 1)]
    special = [(tokenizer.pieces([i])[0], i) for i in used]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
