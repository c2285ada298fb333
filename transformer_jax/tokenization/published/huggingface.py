"""Published tokenizers that the library `tokenizers` runs: its own files, GPT-2's and BERT's."""

import functools
import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from transformer_jax.tokenization.published.vocabulary import (
    Files,
    Vocabulary,
    by_id,
    content_of,
    read_vocab,
    settings_of,
)
from transformer_jax.tokenization.specials import Frame


def tokenizer_json(files: Files, side: str) -> Vocabulary:
    """Whatever model, normalizer and pre-tokenizer the file names."""
    _check_charsmaps(json.loads(files["tokenizer.json"]))
    return _hugging_face(tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode()))


def _check_charsmaps(part: Any) -> None:
    """Raises ValueError where the library would panic, not tell: at a normalizer's cut table."""
    if isinstance(part, Mapping):
        if "precompiled_charsmap" in part:
            table = part["precompiled_charsmap"]
            if not isinstance(table, str) or len(table) < 8:
                raise ValueError("a normalizer's table is cut")
        part = [value for key, value in part.items() if key not in ("model", "vocab")]
    if isinstance(part, Sequence) and not isinstance(part, str):
        for inner in part:
            _check_charsmaps(inner)


def gpt2(files: Files, side: str) -> Vocabulary:
    """Byte-level BPE, also of RoBERTa and BART."""
    vocab = read_vocab(files["vocab.json"])
    lines = files["merges.txt"].decode().split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, [(a, b) for a, b in pairs]))
    spaced = bool(settings_of(files).get("add_prefix_space", False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    tokenizer.decoder = decoders.ByteLevel()
    return _hugging_face(_with_special_tokens(tokenizer, files))


def bert(files: Files, side: str) -> Vocabulary:
    """WordPiece."""
    lines = files["vocab.txt"].decode().split("\n")
    lines = lines[:-1] if lines and not lines[-1] else lines
    vocab = {piece.rstrip("\r"): i for i, piece in enumerate(lines)}
    said = settings_of(files)
    unknown = content_of(said.get("unk_token", "[UNK]"))
    if unknown not in vocab:
        raise ValueError(f"vocab.txt has no {unknown}")
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=said.get("do_lower_case", True),
        strip_accents=said.get("strip_accents"),
        handle_chinese_chars=said.get("tokenize_chinese_chars", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return _hugging_face(_with_special_tokens(tokenizer, files))


_WRITTEN_ALIKE = (
    *("<s>", "</s>", "<pad>", "<unk>", "<mask>", "<|endoftext|>"),
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
)


def _with_special_tokens(tokenizer: tokenizers.Tokenizer, files: Files) -> tokenizers.Tokenizer:
    """Vocabularies in two files do not say which of their tokens are special: those that the files
    beside them name, and those written as special tokens are. A mask takes the space before it."""
    said = settings_of(files)
    named = [content_of(said[key]) for key in said if key.endswith("_token")]
    named = [piece for piece in (*named, *_WRITTEN_ALIKE) if type(piece) is str]
    known = [piece for piece in named if tokenizer.token_to_id(piece) is not None]
    tokenizer.add_special_tokens(
        [
            tokenizers.AddedToken(piece, special=True, normalized=False, lstrip=piece == "<mask>")
            for piece in dict.fromkeys(known)
        ]
    )
    return tokenizer


def _hugging_face(tokenizer: tokenizers.Tokenizer) -> Vocabulary:
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()

    @functools.cache
    def plain() -> tokenizers.Tokenizer:
        copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        copy.encode_special_tokens = True  # as the text that they are written in
        return copy

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    def encode_plain(text: str) -> list[int]:
        return plain().encode(text, add_special_tokens=False).ids

    return Vocabulary(
        pieces=by_id(ids),
        encode=encode,
        encode_plain=encode_plain,
        decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
        special=[i for i, token in added.items() if token.special],
        frame=_frame(tokenizer),
    )


def _frame(tokenizer: tokenizers.Tokenizer) -> Frame | None:
    """What the post-processor puts around a text and between two."""
    if tokenizer.post_processor is None:
        return None
    single, pair = tokenizer.encode("a"), tokenizer.encode("a", "a")

    def special(found: tokenizers.Encoding, backwards: bool = False) -> tuple[int, ...]:
        both = [*zip(found.ids, found.sequence_ids, strict=True)][:: -1 if backwards else 1]
        ids = [i for i, text in takewhile(lambda one: one[1] is None, both)]
        return tuple(ids[::-1] if backwards else ids)

    if 0 not in single.sequence_ids or 1 not in pair.sequence_ids:
        return None
    last_of_first = len(pair) - 1 - pair.sequence_ids[::-1].index(0)
    between = pair.ids[last_of_first + 1 : pair.sequence_ids.index(1)]
    head, tail = special(single), special(single, backwards=True)
    return Frame(head, tail, tuple(between)) if head or tail else None
