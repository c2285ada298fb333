"""Tokenizers that were made elsewhere, taken from their files."""

from collections.abc import Mapping
from pathlib import Path

from transformer_jax.errors import UserError
from transformer_jax.runtime.files import VOCABULARY_BYTES, read_regular
from transformer_jax.tokenization.published.formats import FORMATS
from transformer_jax.tokenization.published.roles import Ids, special_tokens
from transformer_jax.tokenization.published.tokenizer import stored, vocabulary_of
from transformer_jax.tokenization.published.vocabulary import (
    CONFIG,
    SPECIAL_MAP,
    Files,
    settings_of,
)

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
        return _found(path, {name: path, **_beside(path.parent)})
    folder = path.parent if path.is_file() else path
    if not folder.is_dir():
        raise UserError(f"tokenizer.path {path}: there is no such file or folder")
    return _found(path, {found.name: found for found in sorted(folder.iterdir())})


def _of_several(name: str) -> bool:
    """Whether a file is one of several that make a tokenizer."""
    return any(name in format.files for format in FORMATS.values() if len(format.files) > 1)


def _beside(folder: Path) -> dict[str, Path]:
    return {name: folder / name for name in _BESIDE if (folder / name).is_file()}


def _found(path: Path, paths: Mapping[str, Path]) -> tuple[str, Files]:
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
