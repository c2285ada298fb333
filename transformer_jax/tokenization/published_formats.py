# SPDX-License-Identifier: Apache-2.0
"""File formats of published tokenizers: tokenizer.json, Marian's, GPT-2's, sentencepiece's, BERT's.

Reading executes nothing from a file. A special token that a text spells out is read as that token,
as the original libraries do.
"""

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tokenizers

from transformer_jax.ranges import short_repr
from transformer_jax.tokenization.huggingface import (
    byte_bpe,
    huggingface_vocabulary,
    pieces_by_id,
    wordpiece,
)
from transformer_jax.tokenization.sentencepiece import (
    load_sentencepiece,
    sentencepiece_resegmenter,
    sentencepiece_vocabulary,
)
from transformer_jax.tokenization.tokenizer import SpelledTokens, Vocabulary

logger = logging.getLogger(__name__)

Files = Mapping[str, bytes]
"""File name -> its content."""

CONFIG = "tokenizer_config.json"
SPECIAL_MAP = "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
"""Read if they are in the same folder as the files of a format."""


_IGNORED_SETTINGS = frozenset(
    (
        *("tokenizer_class", "backend", "model_max_length", "name_or_path", "auto_map"),
        *("padding_side", "truncation_side", "padding", "truncation", "max_length", "stride"),
        *("pad_to_multiple_of", "pad_token_type_id", "truncation_strategy", "model_input_names"),
        *("use_fast", "from_slow", "is_local", "local_files_only", "special_tokens_map_file"),
        *("vocab_file", "tokenizer_file", "source_spm", "target_spm", "separate_vocabs", "vocab"),
        *("merges_file", "target_vocab_file", "processor_class", "use_default_system_prompt"),
        # The decoder of tokenizer.json decides; texts lose nothing here.
        *("clean_up_tokenization_spaces", "spaces_between_special_tokens"),
        # Compatibility switches of transformers' own conversions; the models are read directly.
        *("legacy", "legacy_behaviour", "errors", "trim_offsets", "keep_accents"),
        "tokenize_chinese",
        # Frames: a task decides them, as documented in `SpecialTokens`.
        *("add_bos_token", "add_eos_token", "src_lang", "tgt_lang", "source_lang", "target_lang"),
        *("chat_template", "model_specific_special_tokens", "max_model_input_sizes", "offset"),
        "unk_id",
        *("mask_token_sent", "do_lowercase_and_remove_accent", "response_schema"),
    )
)
"""Keys of the settings files that do not change the ids of a text here."""

_NEUTRAL_SETTINGS: Mapping[str, Any] = {
    "split_special_tokens": False,
    "sp_model_kwargs": {},
    "do_basic_tokenize": True,
    "never_split": [],
    "add_dummy_prefix_space": True,
    "remove_space": True,
}
"""Keys that no format here supports -> the value with which they have no effect."""

_NAMED_TOKENS = ("mask_token", "additional_special_tokens", "extra_special_tokens")
_READ_SETTINGS = re.compile(
    r"\w+_token|(additional|extra)_special_tokens|added_tokens_decoder|extra_ids|add_prefix_space"
    r"|do_lower_case|strip_accents|tokenize_chinese_chars"
)


def check_settings(files: Files, pieces: Sequence[str | None]) -> None:
    """Refuses settings that change ids in an unsupported way; warns of unknown ones.

    Args:
      pieces: of the vocabulary, by id.

    Raises:
      ValueError: names the key.
    """
    settings = read_settings(files)
    # tokenizer.json has the added tokens; with two vocabularies of Marian they are the source's.
    if not {"tokenizer.json", "target_vocab.json"} & files.keys():
        # PEGASUS's settings name tokens without their ids, for which it shifts its pieces by 103.
        named = {key: settings[key] for key in _NAMED_TOKENS if key in settings}
        missing = declared_special(named).difference(pieces)
        for number, token in settings.get("added_tokens_decoder", {}).items():
            i = int(number)
            if token_text(token) not in pieces[i : i + 1]:
                missing.add(token_text(token))
        if missing:
            raise ValueError(
                f"the settings have a token {min(missing)!r}, and the vocabulary beside them has "
                "none, or with another id; use tokenizer.json instead"
            )
    for key, value in _NEUTRAL_SETTINGS.items():
        if settings.get(key, value) != value:
            raise ValueError(
                f"{CONFIG}: {key} is {short_repr(settings[key])}; only {value!r} is supported"
            )
    unknown = [
        key
        for key in sorted(settings.keys() - _IGNORED_SETTINGS - _NEUTRAL_SETTINGS.keys())
        if not _READ_SETTINGS.fullmatch(key)
    ]
    if unknown:
        logger.warning("%s: unknown keys, which are ignored: %s", CONFIG, short_repr(unknown))


def declared_special(settings: Mapping[str, Any]) -> set[str]:
    """Pieces that the settings files declare as special tokens."""
    tokens: list[Any] = [value for key, value in settings.items() if key.endswith("_token")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        listed = settings.get(key, ())
        tokens += listed.values() if isinstance(listed, Mapping) else listed
    added = settings.get("added_tokens_decoder", {})
    tokens += [token for token in added.values() if token.get("special")]
    pieces = [token_text(token) for token in tokens if not isinstance(token, bool)]
    return {piece for piece in pieces if isinstance(piece, str)}


def read_settings(files: Files) -> dict[str, Any]:
    """Settings of `tokenizer_config.json` and `special_tokens_map.json`, as far as they exist."""
    settings: dict[str, Any] = {}
    for name in (SPECIAL_MAP, CONFIG):  # the later file wins
        content: dict[str, Any] = json.loads(files[name]) if name in files else {}
        settings |= {key: value for key, value in content.items() if value is not None}
    return settings


def read_chat_template(files: Files) -> str | None:
    """The model's chat template: of a file of its own, or the default one of the settings."""
    if CHAT_TEMPLATE in files:
        return files[CHAT_TEMPLATE].decode(errors="replace")
    template = read_settings(files).get("chat_template")
    if isinstance(template, list):  # several templates with names
        named = [entry for entry in template if isinstance(entry, Mapping)]
        template = {entry.get("name"): entry.get("template") for entry in named}.get("default")
    return template if isinstance(template, str) else None


def token_text(token: Any) -> str:
    """Text of a token in a settings file, given as a string or as an object."""
    return token["content"] if isinstance(token, Mapping) else token


def tokenizer_json(files: Files, side: str) -> Vocabulary:
    """Hugging Face's format, with any model, normalizer and pre-tokenizer."""
    if json.loads(files["tokenizer.json"])["model"].get("dropout"):
        raise ValueError("its model drops merges at random (dropout); tokens must not be random")
    return huggingface_vocabulary(tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode()))


def gpt2(files: Files, side: str) -> Vocabulary:
    """GPT-2's byte-level BPE, also used by RoBERTa and BART."""
    vocab: dict[str, int] = json.loads(files["vocab.json"])
    lines = files["merges.txt"].decode().split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    spaced = bool(read_settings(files).get("add_prefix_space", False))
    tokenizer = byte_bpe(vocab, [(a, b) for a, b in pairs], add_prefix_space=spaced)
    return huggingface_vocabulary(_with_special_tokens(tokenizer, files))


def bert(files: Files, side: str) -> Vocabulary:
    """BERT's WordPiece."""
    lines = files["vocab.txt"].decode().removesuffix("\n").split("\n")
    vocab = {piece.rstrip("\r"): i for i, piece in enumerate(lines)}
    settings = read_settings(files)
    unknown = token_text(settings.get("unk_token", "[UNK]"))
    if unknown not in vocab:
        raise ValueError(f"vocab.txt has no {unknown}")
    tokenizer = wordpiece(
        vocab,
        unknown,
        # Google's cased models come without settings. A lower-case vocabulary has no capitals.
        lowercase=settings.get("do_lower_case", "A" not in vocab),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    return huggingface_vocabulary(_with_special_tokens(tokenizer, files))


_USUAL_SPECIALS = (
    *("<s>", "</s>", "<pad>", "<unk>", "<mask>", "<|endoftext|>"),
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
)


def _with_special_tokens(tokenizer: tokenizers.Tokenizer, files: Files) -> tokenizers.Tokenizer:
    """Declares the special tokens of a format whose vocabulary does not mark them.

    They are the tokens that the settings name, and those with usual pieces. "<mask>" consumes the
    space before it.
    """
    settings = read_settings(files)
    named = [token_text(settings[key]) for key in settings if key.endswith("_token")]
    pieces = [piece for piece in (*named, *_USUAL_SPECIALS) if type(piece) is str]
    in_vocabulary = [piece for piece in pieces if tokenizer.token_to_id(piece) is not None]
    tokenizer.add_special_tokens(
        [
            tokenizers.AddedToken(piece, special=True, normalized=False, lstrip=piece == "<mask>")
            for piece in dict.fromkeys(in_vocabulary)
        ]
    )
    return tokenizer


def sentencepiece(files: Files, side: str) -> Vocabulary:
    """A sentencepiece model. For T5's, sentinels follow the pieces of the model."""
    ((name, content),) = (item for item in files.items() if item[0].endswith(".model"))
    if name == "sentencepiece.bpe.model":
        raise ValueError("its pieces have other ids in the model; use tokenizer.json instead")
    if read_settings(files).get("do_lower_case"):
        raise ValueError("its text is made lower case before; use tokenizer.json instead")
    processor = load_sentencepiece(content)
    count = processor.get_piece_size()
    pieces: list[str] = processor.id_to_piece(list(range(count)))
    roles = {
        "unk": processor.unk_id(),
        "pad": processor.pad_id(),
        "bos": processor.bos_id(),
        "eos": processor.eos_id(),
    }
    # T5 has no bos, and its last id is <extra_id_0>.
    is_t5 = tuple(roles.values()) == (2, 0, -1, 1) and "<extra_id_0>" not in pieces
    extra = read_settings(files).get("extra_ids", 100) if is_t5 else 0
    pieces += [f"<extra_id_{i}>" for i in reversed(range(extra))]
    controls = [i for i in range(count) if processor.is_control(i) or processor.is_unknown(i)]
    special = {pieces[i]: i for i in (*controls, *range(count, count + extra))}
    return replace(
        sentencepiece_vocabulary(processor),
        pieces=pieces,
        encode=SpelledTokens(special, processor.encode),
        decode=lambda ids: processor.decode([i for i in ids if i < count]),
        special=tuple(special.values()),
        roles={role: i for role, i in roles.items() if i >= 0},
    )


def marian(files: Files, side: str) -> Vocabulary:
    """Marian's format: a sentencepiece model for each side, and ids from vocab.json.

    The target has ids of its own if target_vocab.json exists.
    """
    is_target = side == "target"
    processor = load_sentencepiece(files["target.spm" if is_target else "source.spm"])
    has_own_ids = is_target and "target_vocab.json" in files
    vocab: dict[str, int] = json.loads(files[f"{'target_' if has_own_ids else ''}vocab.json"])
    pieces = pieces_by_id(vocab)
    unknown = vocab["<unk>"]
    names: tuple[str, ...] = ("</s>", "<pad>", "<unk>")
    special = {piece: vocab[piece] for piece in names if piece in vocab}

    def encode(text: str) -> list[int]:
        language = re.match(r">>.*?<<", text, re.DOTALL)
        if language:  # target language, before the source text
            return [vocab.get(language[0], unknown), *encode_text(text[language.end() :])]
        return encode_text(text)

    def encode_text(text: str) -> list[int]:
        return [vocab.get(piece, unknown) for piece in processor.encode(text, out_type=str)]

    def decode(ids: list[int]) -> str:
        text = processor.decode_pieces([pieces[i] or "" for i in ids])
        return text.replace("▁", " ").strip()

    return Vocabulary(
        pieces,
        SpelledTokens(special, encode),
        encode_text,
        decode,
        [*special.values(), *(i for piece, i in vocab.items() if re.fullmatch(">>.*<<", piece))],
        make_resegmenter=lambda: sentencepiece_resegmenter(processor, vocab),
    )


@dataclass(frozen=True)
class Format:
    """A file format.

    Attributes:
      files: required file names, or patterns of `fnmatch`, which match the first file.
      build: (files, side) -> vocabulary. Damaged files raise errors of many types.
      optional: names of files that may exist as well.
      by_side: True if each side of the data has its own vocabulary.
    """

    files: tuple[str, ...]
    build: Callable[[Files, str], Vocabulary]
    optional: tuple[str, ...] = ()
    by_side: bool = False


FORMATS: dict[str, Format] = {
    "tokenizer.json": Format(("tokenizer.json",), tokenizer_json),
    "marian": Format(
        ("source.spm", "target.spm", "vocab.json"), marian, ("target_vocab.json",), by_side=True
    ),
    "gpt2": Format(("vocab.json", "merges.txt"), gpt2),
    "sentencepiece": Format(("*.model",), sentencepiece),
    "bert": Format(("vocab.txt",), bert),
}
"""Formats by name, the preferred ones first. Stored tokenizers contain these names."""
