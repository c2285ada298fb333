"""A folder of vocabularies.

It holds `sides.json`, which names for each side its file and that file's SHA-256, and the files:
`joint`, or one for each side, with the suffix of their kind, .model (sentencepiece) or .json
(Hugging Face), say, and one .labels.json or .symbols.json for each side of labels or symbols. The
suffix alone decides what loads a file. The folder appears whole or not at all.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from transformer_jax.errors import UserError
from transformer_jax.runtime.files import VOCABULARY_BYTES, read_regular, remove
from transformer_jax.tokenization.config import TOKENIZERS
from transformer_jax.tokenization.labels import Labels
from transformer_jax.tokenization.symbols import Symbols
from transformer_jax.tokenization.tokenizer import Tokenizer

Contents = Mapping[str, tuple[str, bytes]]
"""Side -> (file name, what the file holds)."""

LABELS, SYMBOLS = ".labels.json", ".symbols.json"
_MANIFEST = "sides.json"
_FILE_NAME = re.compile(r"\w+((?:\.\w+)+)")


def loaders() -> dict[str, Callable[[bytes], Tokenizer | Labels]]:
    """Suffix -> what makes an object of a file's content."""
    listed: dict[str, Callable[[bytes], Tokenizer | Labels]] = {
        LABELS: Labels.from_json,
        SYMBOLS: Symbols.from_json,
    }
    return listed | {kind.suffix: kind.load for kind in TOKENIZERS.values()}


def suffix_of(name: str) -> str:
    """What follows a file's stem; ValueError where the name is that of no file in the folder."""
    if found := _FILE_NAME.fullmatch(name):
        return found[1]
    raise ValueError(f"{name!r} is not the name of a file")


def read_folder(directory: Path) -> Contents:
    """All files of a folder, each as it was written."""
    path = directory / _MANIFEST
    try:
        entries = json.loads(_read(path)).items()
        sides = {side: (entry["file"], entry["sha256"]) for side, entry in entries}
        suffixes = {suffix_of(name) for name, _ in sides.values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(_damaged(path)) from error
    if not sides:
        raise UserError(_damaged(path))
    if strange := sorted(suffixes - loaders().keys()):
        raise UserError(
            f"{path}: the tokenizer is damaged, or no kind that is registered stores "
            f"*{strange[0]}; give the module that registers it"
        )
    files = {name: _read(directory / name) for name, _ in sides.values()}
    for name, sha256 in sides.values():
        if sha256_of(files[name]) != sha256:
            raise UserError(_damaged(directory / name))
    return {side: (name, files[name]) for side, (name, _) in sides.items()}


def write_folder(contents: Contents, directory: Path) -> None:
    """Writes the files and their manifest; OSError where the directory holds something."""
    partial = directory.with_name(directory.name + ".partial")
    remove(partial)  # of a run that was killed here
    partial.mkdir(parents=True)
    for name, content in set(contents.values()):
        (partial / name).write_bytes(content)
    manifest = {
        side: {"file": name, "sha256": sha256_of(content)}
        for side, (name, content) in contents.items()
    }
    (partial / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    os.replace(partial, directory)


def sha256_of(content: bytes) -> str:
    """In hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, VOCABULARY_BYTES)
    except OSError as error:
        raise UserError(
            f"{path}: the tokenizer cannot be read ({error.strerror}); "
            "restore the file or train in a new workdir"
        ) from error


def _damaged(path: Path) -> str:
    return f"{path}: the tokenizer is damaged; restore the file or train in a new workdir"
