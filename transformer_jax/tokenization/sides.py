"""The vocabularies of a run: trained once, kept in its workdir, loaded from there ever after.

A folder holds `sides.json`, which names for each side its file and that file's SHA-256, and the
files: `joint`, or one for each side, with the suffix of their kind, .model (sentencepiece) or .json
(Hugging Face), say, and one .labels.json for each side of labels. The suffix alone decides what
loads a file. The folder appears whole or not at all.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from transformer_jax.errors import UserError
from transformer_jax.runtime.files import VOCABULARY_BYTES, read_regular, remove
from transformer_jax.tokenization.config import TOKENIZERS, TokenizerConfig
from transformer_jax.tokenization.labels import Labels
from transformer_jax.tokenization.specials import OWN, SpecialTokens
from transformer_jax.tokenization.tokenizer import Tokenizer
from transformer_jax.tokenization.training import train_model

logger = logging.getLogger(__name__)

Contents = Mapping[str, tuple[str, bytes]]
"""Side -> (file name, what the file holds)."""

_MANIFEST = "sides.json"
_LABELS = ".labels.json"
_FILE_NAME = re.compile(r"\w+((?:\.\w+)+)")


@dataclass(frozen=True)
class Tokenizers:
    """One vocabulary for each side of the data: tokenizers of text, "source" and "target" for
    pairs, and `Labels`.

    Sides of text with a joint vocabulary hold the same object.

    Attributes:
      sides: the vocabulary of each.
      sha256: of the file of each, in hexadecimal digits.
    """

    sides: Mapping[str, Tokenizer | Labels]
    sha256: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, side: str) -> Tokenizer | Labels:
        return self.sides[side]

    def text(self, side: str) -> Tokenizer:
        """The tokenizer of a side of text."""
        found = self.sides[side]
        assert not isinstance(found, Labels), f"side {side} holds labels"
        return found

    def specials(self, side: str) -> SpecialTokens:
        """The special tokens of a side of text; our own where no text is read."""
        return self.text(side).specials if side in self.sides else OWN

    def labels(self, side: str) -> Labels:
        """The labels of a side that has labels."""
        found = self.sides[side]
        assert isinstance(found, Labels), f"side {side} holds text"
        return found

    @property
    def joint(self) -> bool:
        """Whether all text shares one vocabulary, as tied embeddings ask (section 3.4)."""
        return len({id(side) for side in self.sides.values() if not isinstance(side, Labels)}) == 1


def train_tokenizers(
    config: TokenizerConfig,
    texts: Mapping[str, Iterable[str]],
    directory: str | Path,
    labels: Mapping[str, Iterable[str]] | None = None,
) -> Tokenizers:
    """Learns a run's vocabularies and stores them.

    Args:
      config: what vocabularies to learn.
      texts: side -> its texts, which are read once.
      directory: where to store them; made here.
      labels: side -> the labels that stand in the data, in any order and number.

    Raises:
      UserError: the texts do not fit the config, or a side has no labels.
      ValueError: a side has texts and labels.
      OSError: `directory` holds something.
    """
    one_for_all = config.joint and len(texts) > 1
    corpora = {"joint": chain.from_iterable(texts.values())} if one_for_all else texts
    models = {name: train_model(config, corpus, name) for name, corpus in corpora.items()}
    suffix = TOKENIZERS[config.kind].suffix
    names = {side: side if side in models else "joint" for side in texts}
    contents = {side: (name + suffix, models[name]) for side, name in names.items()}
    _store(_with_labels(contents, labels or {}), Path(directory))
    return load_tokenizers(directory)


def load_tokenizers(directory: str | Path) -> Tokenizers:
    """What `train_tokenizers` stored.

    Raises:
      UserError: a file, which it names, is missing or damaged, or of a kind that is not registered.
    """
    return _loaded(Path(directory), _contents(Path(directory)))


def copy_tokenizers(
    source: str | Path,
    directory: str | Path,
    labels: Mapping[str, Iterable[str]] | None = None,
) -> Tokenizers:
    """Stores the vocabularies of another folder as `directory`, and loads them.

    Args:
      source: the other folder.
      directory: where to store them; made here.
      labels: takes the place of all labels of the other folder; None: they are kept.

    Raises:
      UserError: as `load_tokenizers`.
      ValueError, OSError: as `train_tokenizers`.
    """
    contents = _contents(Path(source))
    _loaded(Path(source), contents)
    if labels is not None:
        kept = {side: taken for side, taken in contents.items() if not taken[0].endswith(_LABELS)}
        contents = _with_labels(kept, labels)
    _store(contents, Path(directory))
    logger.info("took over the tokenizers of %s", source)
    return load_tokenizers(directory)


def _with_labels(contents: Contents, labels: Mapping[str, Iterable[str]]) -> Contents:
    if both := contents.keys() & labels.keys():
        raise ValueError(f"of side {min(both)!r} there are both texts and labels")
    found = {side: tuple(sorted(set(names))) for side, names in labels.items()}
    if bare := [side for side, names in found.items() if not names]:
        raise UserError(f"there are no labels to learn for side {bare[0]!r}")
    added = {side: (side + _LABELS, Labels(names).to_json()) for side, names in found.items()}
    return {**contents, **added}


def _loaders() -> dict[str, Callable[[bytes], Tokenizer | Labels]]:
    """Suffix -> what makes an object of a file's content."""
    return {kind.suffix: kind.load for kind in TOKENIZERS.values()} | {_LABELS: Labels.from_json}


def _suffix(name: str) -> str:
    """What follows a file's stem; ValueError where the name is that of no file in the folder."""
    if found := _FILE_NAME.fullmatch(name):
        return found[1]
    raise ValueError(f"{name!r} is not the name of a file")


def _loaded(directory: Path, contents: Contents) -> Tokenizers:
    objects: dict[str, Tokenizer | Labels] = {}
    loaders = _loaders()
    for name, content in set(contents.values()):
        try:
            objects[name] = loaders[_suffix(name)](content)
        except ValueError as error:
            raise UserError(f"{directory / name}: {error}") from error
    sides = {side: objects[name] for side, (name, _) in contents.items()}
    return Tokenizers(sides, {side: _sha256(content) for side, (_, content) in contents.items()})


def _contents(directory: Path) -> Contents:
    """All files of a folder, each as it was written."""
    path = directory / _MANIFEST
    try:
        entries = json.loads(_read(path)).items()
        sides = {side: (entry["file"], entry["sha256"]) for side, entry in entries}
        suffixes = {_suffix(name) for name, _ in sides.values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(_damaged(path)) from error
    if not sides:
        raise UserError(_damaged(path))
    if strange := sorted(suffixes - _loaders().keys()):
        raise UserError(
            f"{path}: the tokenizer is damaged, or no kind that is registered stores "
            f"*{strange[0]}; give the module that registers it"
        )
    files = {name: _read(directory / name) for name, _ in sides.values()}
    for name, sha256 in sides.values():
        if _sha256(files[name]) != sha256:
            raise UserError(_damaged(directory / name))
    return {side: (name, files[name]) for side, (name, _) in sides.items()}


def _store(contents: Contents, directory: Path) -> None:
    partial = directory.with_name(directory.name + ".partial")
    remove(partial)  # of a run that was killed here
    partial.mkdir(parents=True)
    for name, content in set(contents.values()):
        (partial / name).write_bytes(content)
    manifest = {
        side: {"file": name, "sha256": _sha256(content)}
        for side, (name, content) in contents.items()
    }
    (partial / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    os.replace(partial, directory)


def _sha256(content: bytes) -> str:
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
