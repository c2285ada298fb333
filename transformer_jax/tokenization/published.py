# SPDX-License-Identifier: Apache-2.0
"""Kind "file": published tokenizers, stored with the files that they were imported from.

The stored form is a JSON object: the files byte for byte, their format, the side of the data, the
special tokens by role, and the number of ids."""

import base64
import dataclasses
import fnmatch
import itertools
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.runtime.files import path_of_published, read_regular
from transformer_jax.tokenization.published_formats import (
    CHAT_TEMPLATE,
    CONFIG,
    FORMATS,
    SPECIAL_MAP,
    Files,
    check_settings,
    declared_special,
    read_chat_template,
    read_settings,
    token_text,
)
from transformer_jax.tokenization.specials import Frame, SpecialTokens
from transformer_jax.tokenization.tokenizer import StoredTokenizer, Vocabulary

_CONFIG_FILES = (CONFIG, SPECIAL_MAP, CHAT_TEMPLATE)

_USUAL_PIECES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "⟨pad⟩"),
    "unk": ("<unk>", "[UNK]", "⟨unk⟩"),
    "bos": ("<s>", "<|begin_of_text|>", "<bos>", "⟨s⟩"),
    "eos": ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|im_end|>", "⟨/s⟩"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
    "mask": ("[MASK]", "<mask>"),
}
"""Role -> usual pieces of its token, the most common first."""

ROLES = (*_USUAL_PIECES, "start", "first")
FRAME_PARTS = ("head", "tail", "between")
ENDS = "ends"

Ids = Mapping[str, Any]
"""Ids of special tokens: one for each of ROLES, any number for each of FRAME_PARTS (the frame of a
translation) and for ENDS."""


class PublishedTokenizer(StoredTokenizer):
    """A `Tokenizer` of kind "file": encodes and decodes exactly as the original library does.

    Attributes:
      specials: special tokens by role.
      format: an entry of `FORMATS`.
      files: the original files by name.
    """

    def __init__(self, content: bytes):
        """Loads the output of `import_tokenizer`."""
        stored = json.loads(content)
        self.format: str = stored["format"]
        self.files: Files = {name: base64.b64decode(text) for name, text in stored["files"].items()}
        vocabulary = _build_vocabulary(self.format, self.files, stored["side"])
        super().__init__(content, vocabulary, stored["vocab_size"])
        unused = [i for i, piece in enumerate(vocabulary.pieces) if piece is None]
        unused += range(len(vocabulary.pieces), self.vocab_size)
        self.specials = _read_specials(stored["specials"], unused)

    @property
    def chat_template(self) -> str | None:
        """The model's chat template, in Jinja; None if the files have none."""
        return read_chat_template(self.files)

    @property
    def named_tokens(self) -> dict[str, str]:
        """Special tokens by the names of the settings files, such as {"eos_token": "</s>"}."""
        settings = read_settings(self.files)
        ids = {"bos_token": self.specials.first, "eos_token": self.specials.eos}
        tokens = {name: self.pieces([i])[0] for name, i in ids.items()}
        for name, value in settings.items():
            text = token_text(value) if name.endswith("_token") else None
            if isinstance(text, str):
                tokens[name] = text
        return tokens


def import_tokenizer(
    path: str | Path, side: str, ids: Ids | None = None, rows: int | None = None
) -> bytes:
    """Reads a published tokenizer; returns the content that `PublishedTokenizer` loads.

    Args:
      path: a file, or a folder with the files of one format.
      side: of the data, such as "source", "target" or "text". Marian's sides differ, and a search
        generates the target.
      ids: special tokens that replace those named in the files.
      rows: rows of the model's embedding table, if it has more than the vocabulary has tokens.

    Raises:
      UserError: the path does not exist or contains no tokenizer, it is damaged, no token ends a
        text, or an id or `rows` does not fit the vocabulary.
    """
    format, files = _read_files(Path(path))
    try:
        vocabulary = _build_vocabulary(format, files, side)
        check_settings(files, vocabulary.pieces)
        specials = special_tokens(vocabulary, read_settings(files), ids or {}, side)
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from error
    size = len(vocabulary.pieces)
    if rows is not None and rows < size:
        raise UserError(
            f"{path}: the tokenizer has {size} tokens, and the model's table {rows}; remove those "
            f"from id {rows} on from the tokenizer's files (added tokens, which the model never "
            "learned)"
        )
    num_ids = rows or size
    for i in specials.ids:
        if not 0 <= i < num_ids:
            raise UserError(f"{path}: a special token has id {i}; there are {num_ids}")
    stored_side = side if FORMATS[format].by_side else ""
    return _serialize(format, files, stored_side, specials, num_ids)


def special_tokens(
    vocabulary: Vocabulary, settings: Mapping[str, Any], given: Ids, side: str
) -> SpecialTokens:
    """Finds the special tokens of a vocabulary by role.

    In order of precedence a role's token is the one that the caller gives, that the settings name,
    that the vocabulary declares, or a declared special token with one of the role's usual pieces.
    Ordinary pieces never have a role, even if they are written "<s>".

    Args:
      vocabulary: with the roles that its own files declare.
      settings: of the files beside the vocabulary, such as {"eos_token": "</s>"}.
      given: ids that replace all others.
      side: of the data. A search generates "target", which always ends in `eos`.

    Raises:
      ValueError: no token ends a text.
    """
    ids = {piece: i for i, piece in enumerate(vocabulary.pieces) if piece is not None}
    named = declared_special(settings)
    declared = {*vocabulary.special, *(ids[piece] for piece in named if piece in ids)}
    roles = _find_roles(vocabulary, settings, given, ids, declared)
    eos = roles.get("eos", roles.get("sep"))
    if eos is None:
        usual = ", ".join(_USUAL_PIECES["eos"])
        raise ValueError(f"no token ends a text: none is named in the files, or is {usual}")
    bos = roles.get("bos")
    pad = roles.get("pad", eos)
    start = roles.get("start", pad if bos is None else bos)
    first = roles.get("first", eos if bos is None else bos)
    cls = roles.get("cls", first)
    sep = roles.get("sep", eos)
    # RoBERTa writes a text as <s> text </s>, and </s></s> between two, also if no file names cls.
    is_roberta = "bos" in roles and roles.get("mask", -1) == ids.get("<mask>")
    has_cls = "cls" in roles or is_roberta
    between = (sep, sep) if (cls, sep) == (bos, eos) and has_cls else (sep,)
    # Files of one model may name different ends: that of the settings is added to the caller's.
    ends = [*given[ENDS], ids.get(token_text(settings.get("eos_token")))] if ENDS in given else []
    frame = vocabulary.frame or Frame((cls,) if has_cls else (), (sep,), between)
    return SpecialTokens(
        pad=pad,
        eos=eos,
        start=start,
        first=first,
        unk=roles.get("unk"),
        mask=roles.get("mask"),
        translation=_translation_frame(frame, given, start, eos, side),
        encoder=Frame(frame.head or (cls,), frame.tail or (sep,), frame.between or between),
        ends=tuple(i for i in dict.fromkeys(ends) if i not in (eos, None)),
        others=tuple(sorted(declared)),
    )


def _find_roles(
    vocabulary: Vocabulary,
    settings: Mapping[str, Any],
    overrides: Ids,
    ids: Mapping[str, int],
    declared: Collection[int],
) -> dict[str, int]:
    """Id of each role. The sources are read by increasing precedence, so that the last one wins."""
    roles = {
        role: ids[piece]
        for role, usual in _USUAL_PIECES.items()
        for piece in usual[::-1]  # the most common one last
        if ids.get(piece) in declared
    }
    roles |= vocabulary.roles
    named = {role: token_text(settings.get(f"{role}_token")) for role in _USUAL_PIECES}
    roles |= {role: ids[piece] for role, piece in named.items() if piece in ids}
    return roles | {role: int(i) for role, i in overrides.items() if role in ROLES}


def _translation_frame(frame: Frame, overrides: Ids, start: int, eos: int, side: str) -> Frame:
    """Frame of a source or target: it ends in `eos`, and a target does not begin with `start`."""
    tail = frame.tail if eos in frame.tail else (*frame.tail, eos)
    head = () if side == "target" and frame.head == (start,) else frame.head
    parts = {"head": head, "tail": (eos,) if side == "target" else tail, "between": frame.between}
    parts |= {name: tuple(overrides[name]) for name in FRAME_PARTS if name in overrides}
    return Frame(**parts)


def _build_vocabulary(format: str, files: Files, side: str) -> Vocabulary:
    """Vocabulary of a tokenizer's files. Raises ValueError if they are damaged."""
    try:
        vocabulary = FORMATS[format].build(files, side)
        vocabulary.decode(vocabulary.encode("a"))  # some damage shows only in use
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library `tokenizers` is not an `Exception`
        raise ValueError(f"{format}: {type(error).__name__} {error}") from error
    return vocabulary


def _serialize(
    format: str, files: Files, side: str, specials: SpecialTokens, vocab_size: int
) -> bytes:
    fields = dataclasses.asdict(specials)
    del fields["unused"]  # follows from the vocabulary and its size
    stored = {
        "format": format,
        "side": side,
        "vocab_size": vocab_size,
        "specials": fields,
        "files": {name: base64.b64encode(files[name]).decode() for name in sorted(files)},
    }
    return (json.dumps(stored, indent=1) + "\n").encode()


def _read_specials(fields: Mapping[str, Any], unused: Iterable[int]) -> SpecialTokens:
    """Stored special tokens, and the ids without a piece."""
    frames = {
        name: Frame(**{part: tuple(ids) for part, ids in fields[name].items()})
        for name in ("translation", "encoder")
    }
    others = {name: tuple(fields.get(name, ())) for name in (ENDS, "others")}
    others["unused"] = tuple(unused)
    return SpecialTokens(**{**fields, **frames, **others})


def _read_files(path: Path) -> tuple[str, Files]:
    """Format of a tokenizer, and its files by the names that the format gives them."""
    of_several = [format.files for format in FORMATS.values() if len(format.files) > 1]
    if path.is_file() and path.name not in itertools.chain(*of_several):
        name = "tokenizer.json" if path.suffix == ".json" else path.name
        beside = [path.parent / config_name for config_name in _CONFIG_FILES]
        paths = {file.name: file for file in beside if file.is_file()}
        # Resolved: a file that the user names may be a link to anywhere.
        return _find_format(path, {name: path.resolve(), **paths})
    folder = path.parent if path.is_file() else path
    if not folder.is_dir():
        raise UserError(f"tokenizer.path {path}: there is no such file or folder")
    return _find_format(path, {file.name: file for file in sorted(folder.iterdir())})


def _find_format(path: Path, paths: Mapping[str, Path]) -> tuple[str, Files]:
    for name, format in FORMATS.items():
        required = [fnmatch.filter(paths, file)[:1] for file in format.files]
        if all(required):
            files = [*itertools.chain(*required), *format.optional, *_CONFIG_FILES]
            return name, {file: _read(paths[file]) for file in files if file in paths}
    raise UserError(
        f"tokenizer.path {path}: no tokenizer is there; it may be tokenizer.json, a sentencepiece "
        ".model, Marian's source.spm, target.spm and vocab.json, GPT-2's vocab.json and "
        "merges.txt, or BERT's vocab.txt"
    )


def _read(path: Path) -> bytes:
    try:
        return read_regular(path_of_published(path))
    except OSError as error:
        raise UserError(f"{path}: the tokenizer cannot be read ({error.strerror})") from error
