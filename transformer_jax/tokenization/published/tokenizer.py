"""A tokenizer that was made elsewhere, kept with the files that it came in.

Stored, it is a JSON object: the original files byte for byte, the format that they are in, the side
that they serve, the special tokens and the number of ids. Loading it executes nothing.
"""

import base64
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.runtime.files import VOCABULARY_BYTES, read_regular
from transformer_jax.tokenization.huggingface import CONTINUED, WHITE_BYTES
from transformer_jax.tokenization.published.formats import (
    CONFIG,
    FORMATS,
    SPECIAL_MAP,
    Files,
    Vocabulary,
    content_of,
    settings_of,
)
from transformer_jax.tokenization.specials import Frame, SpecialTokens
from transformer_jax.tokenization.tokenizer import encode_each, well_formed, word_starts

_MOST_IDS = 10_000_000


class PublishedTokenizer:
    """A `Tokenizer` of kind "file": it reads and writes text as the library that it is from does.

    Attributes:
      specials: its special tokens.
      vocab_size: number of ids; those beyond the vocabulary stand for no token.
      format: an entry of `FORMATS`.
      files: the original files by their names.
    """

    def __init__(self, content: bytes):
        """Loads what `stored` made.

        Raises:
          ValueError: it is something else, or damaged.
        """
        self._content = content
        try:
            found = json.loads(content)
            self.format: str = found["format"]
            self.files: Files = {
                name: base64.b64decode(text, validate=True) for name, text in found["files"].items()
            }
            vocabulary = vocabulary_of(self.format, self.files, found["side"])
            self.vocab_size: int = found["vocab_size"]
            if not len(vocabulary.pieces) <= self.vocab_size <= _MOST_IDS:
                raise ValueError(f"{len(vocabulary.pieces)} pieces, and {self.vocab_size} ids")
            self.specials = _specials(found["specials"], vocabulary.pieces, self.vocab_size)
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"this is no tokenizer from a file ({reason})") from error
        self._vocabulary = vocabulary
        self._begins = _begin_words(vocabulary.pieces)

    def __reduce__(self) -> tuple[type["PublishedTokenizer"], tuple[bytes]]:
        return PublishedTokenizer, (self._content,)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with nothing around it; a special token in it is read as that."""
        return self._vocabulary.encode(well_formed(text))

    def encode_plain(self, text: str) -> list[int]:
        """The ids of a text in which nothing is a special token."""
        return self._vocabulary.encode_plain(well_formed(text))

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word by itself, at least one; see `Tokenizer`."""
        joins = self._vocabulary.decode(self.encode("a") * 2) == "a a"
        return encode_each(words, self, "" if joins else " ")

    def decode(self, ids: Iterable[int]) -> str:
        """The text of all ids; special tokens, unknown included, leave nothing in it."""
        return self._vocabulary.decode([int(i) for i in ids if i not in self.specials.ids])

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each id as its vocabulary entry, for people to read."""
        known = self._vocabulary.pieces
        return [(known[i] if i < len(known) else None) or "⟨unused⟩" for i in ids]

    def starts_word(self, ids: Iterable[int]) -> list[bool]:
        """Whether each id begins a word, or the white space before it; see `Tokenizer`."""
        return word_starts(ids, self._begins, self.specials.ids)

    def count_unknown(self, ids: Iterable[int]) -> int:
        """How many of the ids stand for unknown text."""
        return sum(1 for i in ids if i == self.specials.unk)


def stored(format: str, files: Files, side: str, specials: SpecialTokens, vocab_size: int) -> bytes:
    """The content of the file that `PublishedTokenizer` loads."""
    fields = dataclasses.asdict(specials)
    del fields["unused"]  # these follow from the other two
    found = {
        "format": format,
        "side": side,
        "vocab_size": vocab_size,
        "specials": fields,
        "files": {name: base64.b64encode(files[name]).decode() for name in sorted(files)},
    }
    return (json.dumps(found, indent=1) + "\n").encode()


def vocabulary_of(format: str, files: Files, side: str) -> Vocabulary:
    """What the files hold; ValueError where they are damaged, or text cannot be read by them."""
    try:
        vocabulary = FORMATS[format].build(files, side)
        vocabulary.decode(vocabulary.encode("a"))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the library `tokenizers` also panics, which is no `Exception`
        raise ValueError(f"{format}: {error or type(error).__name__}") from error
    return vocabulary


def _specials(
    fields: Mapping[str, Any], pieces: Sequence[str | None], vocab_size: int
) -> SpecialTokens:
    """The stored special tokens, checked."""
    frames = {
        name: Frame(**{part: tuple(ids) for part, ids in fields[name].items()})
        for name in ("translation", "encoder")
    }
    unused = [i for i in range(vocab_size) if i >= len(pieces) or pieces[i] is None]
    others = {"others": tuple(fields["others"]), "unused": tuple(unused)}
    specials = SpecialTokens(**{**fields, **frames, **others})
    if not all(type(i) is int and 0 <= i < vocab_size for i in specials.ids):
        raise ValueError("a special token's id is none of the vocabulary")
    if not specials.encoder.between:
        raise ValueError("nothing stands between two texts")
    return specials


def _begin_words(pieces: Sequence[str | None]) -> list[bool]:
    """Of each piece whether it is written as a word's first: behind a space, or else without the
    sign that it continues one."""
    known = [piece or "" for piece in pieces]
    if "Ġ" in known:
        return [piece.startswith(WHITE_BYTES) for piece in known]
    if any(piece.startswith("▁") for piece in known):
        return [piece.startswith("▁") or piece[:1].isspace() for piece in known]
    return [not piece.startswith(CONTINUED) for piece in known]


# FOLDED tokenization.published.roles: Which of a published vocabulary's tokens is what: padding,
# end, mask and so on. In this order it follows from ids that a caller gives, from the files beside
# the vocabulary, from the model itself, and from how special tokens are usually written.


_WRITTEN = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "⟨pad⟩"),
    "unk": ("<unk>", "[UNK]", "⟨unk⟩"),
    "bos": ("<s>", "<|begin_of_text|>", "<bos>", "⟨s⟩"),
    "eos": ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|im_end|>", "⟨/s⟩"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
    "mask": ("[MASK]", "<mask>"),
}
"""Role -> how its token is usually written."""

FRAMES = ("head", "tail", "between")
ROLES = (*_WRITTEN, "start", "first")

Ids = Mapping[str, Any]
"""One id for each of ROLES, any number for each of FRAMES, which are those of a translation."""


def special_tokens(
    vocabulary: Vocabulary, said: Mapping[str, Any], given: Ids, side: str
) -> SpecialTokens:
    """The special tokens of a vocabulary.

    Args:
      vocabulary: with what the files themselves say.
      said: the content of the files beside it, "eos_token": "</s>" and so on.
      given: ids that take the place of what the files say.
      side: "target" is what a search writes: it ends in `eos`.

    Raises:
      ValueError: there is no token that ends a text, or a role that is not known is given.
    """
    if strange := given.keys() - {*ROLES, *FRAMES}:
        raise ValueError(f"{min(strange)!r} is none of the roles {', '.join((*ROLES, *FRAMES))}")
    ids = {piece: i for i, piece in enumerate(vocabulary.pieces) if piece is not None}
    found = _found(vocabulary, said, given, ids)
    is_roberta = "bos" in found and vocabulary.pieces[found.get("mask", found["bos"])] == "<mask>"
    declared = "cls" in found or is_roberta
    eos = found.get("eos", found.get("sep"))
    if eos is None:
        raise ValueError(
            f"no token ends a text: none is named in the files, or is {', '.join(_WRITTEN['eos'])}"
        )
    pad, bos = found.get("pad", eos), found.get("bos")
    start = found.get("start", pad if bos is None else bos)
    first = found.get("first", eos if bos is None else bos)
    cls, sep = found.get("cls", first), found.get("sep", eos)
    doubled = (sep, sep) if (cls, sep) == (bos, eos) and declared else (sep,)
    frame = vocabulary.frame or Frame((cls,) * declared, (sep,), doubled)
    return SpecialTokens(
        pad=pad,
        eos=eos,
        start=start,
        first=first,
        unk=found.get("unk"),
        mask=found.get("mask"),
        translation=_of_translation(frame, given, start, eos, side),
        encoder=Frame(frame.head or (cls,), frame.tail or (sep,), frame.between or doubled),
        others=tuple(sorted(_others(vocabulary, said, ids))),
    )


def _found(
    vocabulary: Vocabulary, said: Mapping[str, Any], given: Ids, ids: Mapping[str, int]
) -> dict[str, int]:
    found = {
        role: ids[piece]
        for role, written in _WRITTEN.items()
        for piece in written[::-1]
        if piece in ids
    }
    found |= vocabulary.roles
    named = {role: content_of(said.get(f"{role}_token")) for role in _WRITTEN}
    found |= {role: ids[piece] for role, piece in named.items() if piece in ids}
    return found | {role: int(i) for role, i in given.items() if role in ROLES}


def _of_translation(frame: Frame, given: Ids, start: int, eos: int, side: str) -> Frame:
    """Every text ends in `eos`; a head that the decoder starts from anyway is not repeated."""
    tail = frame.tail if eos in frame.tail else (*frame.tail, eos)
    head = () if side == "target" and frame.head == (start,) else frame.head
    parts = {"head": head, "tail": (eos,) if side == "target" else tail, "between": frame.between}
    parts |= {name: tuple(given[name]) for name in FRAMES if name in given}
    return Frame(**parts)


def _others(vocabulary: Vocabulary, said: Mapping[str, Any], ids: Mapping[str, int]) -> set[int]:
    lists = ("additional_special_tokens", "extra_special_tokens")
    listed = [said.get(name, ()) for name in lists]
    named = [
        content_of(token)
        for tokens in listed
        for token in (tokens.values() if isinstance(tokens, Mapping) else tokens)
    ]
    return {*vocabulary.special, *(ids[piece] for piece in named if piece in ids)}


# FOLDED tokenization.published.from_files: Tokenizers that were made elsewhere, taken from their
# files.


_BESIDE = (CONFIG, SPECIAL_MAP)


def from_files(
    path: str | Path, side: str, ids: Ids | None = None, rows: int | None = None
) -> bytes:
    """The content of the file that stores the tokenizer of a side, as kind "file" loads it.

    Args:
      path: a file, or a folder that holds those of a format.
      side: of the data, such as "source", "target" or "text". Marian's sides differ, and the target
        is what a search writes.
      ids: of special tokens, in place of what the files say: see `roles.special_tokens`.
      rows: of the model's table, where it has more than the vocabulary has tokens.

    Raises:
      UserError: there is no such path or no tokenizer, it is damaged, it has no token that ends a
        text, or an id or `rows` does not fit it.
    """
    format, files = _read(Path(path))
    try:
        vocabulary = vocabulary_of(format, files, side)
        specials = special_tokens(vocabulary, settings_of(files), ids or {}, side)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from error
    size = len(vocabulary.pieces)
    if rows is not None and rows < size:
        raise UserError(f"{path}: the tokenizer has {size} tokens, and the model's table {rows}")
    if strange := [i for i in specials.ids if not 0 <= i < (rows or size)]:
        raise UserError(f"{path}: a special token has id {strange[0]}; there are {rows or size}")
    own_side = side if FORMATS[format].by_side else ""
    content = stored(format, files, own_side, specials, rows or size)
    if len(content) > VOCABULARY_BYTES:
        raise UserError(f"{path}: the tokenizer's files are larger than {VOCABULARY_BYTES:,} bytes")
    return content


def _read(path: Path) -> tuple[str, Files]:
    """The format of a tokenizer, and its files by the names that the format knows."""
    if path.is_file() and not _of_several(path.name):
        name = "tokenizer.json" if path.suffix == ".json" else path.name
        return _find_file(path, {name: path, **_beside(path.parent)})
    folder = path.parent if path.is_file() else path
    if not folder.is_dir():
        raise UserError(f"tokenizer.path {path}: there is no such file or folder")
    return _find_file(path, {found.name: found for found in sorted(folder.iterdir())})


def _of_several(name: str) -> bool:
    """Whether a file is one of several that make a tokenizer."""
    return any(name in format.files for format in FORMATS.values() if len(format.files) > 1)


def _beside(folder: Path) -> dict[str, Path]:
    return {name: folder / name for name in _BESIDE if (folder / name).is_file()}


def _find_file(path: Path, paths: Mapping[str, Path]) -> tuple[str, Files]:
    for name, format in FORMATS.items():
        named = [format.named(wanted, paths) for wanted in format.files]
        if None not in named:
            names = [*filter(None, named), *format.optional, *_BESIDE]
            return name, {one: _content(paths[one]) for one in names if one in paths}
    raise UserError(
        f"tokenizer.path {path}: no tokenizer is there; it may be tokenizer.json, a sentencepiece "
        ".model, Marian's source.spm, target.spm and vocab.json, GPT-2's vocab.json and "
        "merges.txt, or BERT's vocab.txt"
    )


def _content(path: Path) -> bytes:
    try:
        return read_regular(path.resolve(), VOCABULARY_BYTES)
    except OSError as error:
        raise UserError(f"{path}: the tokenizer cannot be read ({error.strerror})") from error
