"""A tokenizer that was made elsewhere, kept with the files that it came in.

Stored, it is a JSON object: the original files byte for byte, the format that they are in, the side
that they serve, the special tokens and the number of ids. Loading it executes nothing.
"""

import base64
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformer_jax.tokenization.characters import well_formed
from transformer_jax.tokenization.huggingface_tokenizer import CONTINUED, WHITE_BYTES
from transformer_jax.tokenization.published.formats import FORMATS
from transformer_jax.tokenization.published.vocabulary import Files, Vocabulary
from transformer_jax.tokenization.specials import Frame, SpecialTokens
from transformer_jax.tokenization.tokenizer import encode_each, word_starts

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
