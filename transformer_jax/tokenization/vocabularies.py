"""The vocabularies of a run: trained or taken once, kept in its workdir, loaded from there."""

import hashlib
import json
import logging
import os
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from transformer_jax.errors import UserError
from transformer_jax.runtime.files import VOCABULARY_BYTES, read_regular, remove
from transformer_jax.tokenization.config import TOKENIZERS, TokenizerConfig
from transformer_jax.tokenization.specials import OWN, SpecialTokens
from transformer_jax.tokenization.tokenizer import Tokenizer, well_formed
from transformer_jax.tokenization.word_level import Labels, Symbols

# FOLDED tokenization.folder: A folder of vocabularies. It holds `sides.json`, which names for each
# side its file and that file's SHA-256, and the files: `joint`, or one for each side, with the
# suffix of their kind, .model (sentencepiece) or .json (Hugging Face), say, and one .labels.json
# or .symbols.json for each side of labels or symbols. The suffix alone decides what loads a file.
# The folder appears whole or not at all.


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


# FOLDED tokenization.training: Trains one vocabulary on texts.


logger = logging.getLogger(__name__)

MAX_TEXTS = 2_000_000
"""Vocabularies hardly change beyond this; a larger corpus is sampled evenly."""


def train_model(config: TokenizerConfig, texts: Iterable[str], name: str) -> bytes:
    """The content of the vocabulary's file; the same texts give the same.

    Reads the texts once and holds at most MAX_TEXTS of them.

    Args:
      config: what vocabulary to learn.
      texts: to learn from.
      name: whose vocabulary this is, for messages.

    Raises:
      UserError: there is no text, or it does not fit `vocab_size`.
    """
    worded = (text for text in texts if text.strip() or (config.keeps_white_space and text))
    sample = sample_texts(map(well_formed, worded), MAX_TEXTS)
    if not sample:
        raise UserError(f"the {name} tokenizer has no text to learn from: every line is empty")
    train = TOKENIZERS[config.kind].train
    assert train is not None
    model = train(config, sample, name)
    logger.info("trained the %s %s tokenizer on %d texts", name, config.kind, len(sample))
    return model


def sample_texts(texts: Iterable[str], limit: int) -> list[str]:
    """At most `limit` of the texts, each equally likely, the same ones every time.

    Reservoir sampling (Vitter 1985, algorithm R). The sample that sentencepiece can draw itself
    differs from process to process and cannot be seeded.
    """
    draw = random.Random(0).randrange
    sample: list[str] = []
    for index, text in enumerate(texts):
        if index < limit:
            sample.append(text)
        elif (slot := draw(index + 1)) < limit:
            sample[slot] = text
    return sample


Listed = Iterable[str] | Labels | Symbols
"""A vocabulary of which all entries are known: `Labels` that stand in the data, in any order and
number, or one that is made already."""


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
    def outputs(self) -> Tokenizer | Labels:
        """The vocabulary of what a model predicts: that of the last side, "target" or labels where
        there are two."""
        return [*self.sides.values()][-1]

    @property
    def joint(self) -> bool:
        """Whether all text shares one vocabulary, as tied embeddings ask (section 3.4)."""
        return len({id(side) for side in self.sides.values() if not isinstance(side, Labels)}) == 1


def train_tokenizers(
    config: TokenizerConfig,
    texts: Mapping[str, Iterable[str]],
    directory: str | Path,
    labels: Mapping[str, Listed] | None = None,
) -> Tokenizers:
    """Learns a run's vocabularies and stores them.

    Args:
      config: what vocabularies to learn.
      texts: side -> its texts, which are read once.
      directory: where to store them; made here.
      labels: side -> its labels or symbols.

    Raises:
      UserError: the texts do not fit the config, or a side has no labels.
      ValueError: a side has texts and labels.
      OSError: `directory` holds something.
    """
    kind = TOKENIZERS[config.kind]
    if kind.take:
        taken = {side: kind.take(str(config.path), side) for side in texts}
        return store_tokenizers(config.kind, taken, directory, labels)
    one_for_all = config.joint and len(texts) > 1
    corpora = {"joint": chain.from_iterable(texts.values())} if one_for_all else texts
    models = {name: train_model(config, corpus, name) for name, corpus in corpora.items()}
    names = {side: side if side in models else "joint" for side in texts}
    contents = {side: (name + kind.suffix, models[name]) for side, name in names.items()}
    write_folder(_with_labels(contents, labels or {}), Path(directory))
    return load_tokenizers(directory)


def store_tokenizers(
    kind: str,
    sides: Mapping[str, bytes],
    directory: str | Path,
    labels: Mapping[str, Listed] | None = None,
) -> Tokenizers:
    """Stores vocabularies that are there already, and loads them.

    Args:
      kind: an entry of `TOKENIZERS`.
      sides: side -> the content of its file; sides of equal content share one vocabulary.
      directory, labels: as for `train_tokenizers`, which raises the same.
    """
    is_joint = len(sides) > 1 and len(set(sides.values())) == 1
    suffix = TOKENIZERS[kind].suffix
    contents = {
        side: (("joint" if is_joint else side) + suffix, content) for side, content in sides.items()
    }
    write_folder(_with_labels(contents, labels or {}), Path(directory))
    return load_tokenizers(directory)


def expected_sizes(config: TokenizerConfig, sides: Iterable[str]) -> dict[str, int]:
    """Ids of each side's vocabulary, as far as that is known before any text is read: those that
    are asked for, or that the files have.

    Raises:
      UserError: there are no such files, or they are damaged.
    """
    kind = TOKENIZERS[config.kind]
    if not kind.take:
        return dict.fromkeys(sides, config.vocab_size)
    return {side: kind.load(kind.take(str(config.path), side)).vocab_size for side in sides}


def load_tokenizers(directory: str | Path) -> Tokenizers:
    """What `train_tokenizers` stored.

    Raises:
      UserError: a file, which it names, is missing or damaged, or of a kind that is not registered.
    """
    return _loaded(Path(directory), read_folder(Path(directory)))


def copy_tokenizers(
    source: str | Path,
    directory: str | Path,
    labels: Mapping[str, Listed] | None = None,
    sides: Iterable[str] = (),
) -> Tokenizers:
    """Stores the vocabularies of another folder as `directory`, and loads them.

    Args:
      source: the other folder.
      directory: where to store them; made here.
      labels: takes the place of all labels of the other folder, and of what it has for these sides,
        but for symbols, which it keeps where it has them; None: all is kept.
      sides: of text that must be there; where one is missing and the other folder has one
        vocabulary for all its text, it is that.

    Raises:
      UserError: as `load_tokenizers`.
      ValueError, OSError: as `train_tokenizers`.
    """
    contents = read_folder(Path(source))
    _loaded(Path(source), contents)
    if labels is not None:
        kept = {
            side: taken
            for side, taken in contents.items()
            if not taken[0].endswith(LABELS) and (taken[0].endswith(SYMBOLS) or side not in labels)
        }
        texts = {taken for taken in kept.values() if not taken[0].endswith(SYMBOLS)}
        if len(texts) == 1:
            kept = dict.fromkeys(sides, *texts) | kept
        new = {side: listed for side, listed in labels.items() if side not in kept}
        contents = _with_labels(kept, new)
    write_folder(contents, Path(directory))
    logger.info("took over the tokenizers of %s", source)
    return load_tokenizers(directory)


def _with_labels(contents: Contents, labels: Mapping[str, Listed]) -> Contents:
    if both := contents.keys() & labels.keys():
        raise ValueError(f"of side {min(both)!r} there are both texts and labels")
    found = {}
    for side, listed in labels.items():
        if isinstance(listed, Symbols):
            found[side] = (side + SYMBOLS, listed.to_json())
            continue
        names = listed if isinstance(listed, Labels) else Labels(_in_order(listed, side))
        found[side] = (side + LABELS, names.to_json())
    return {**contents, **found}


def _in_order(names: Iterable[str], side: str) -> tuple[str, ...]:
    """Each label once; UserError where there is none."""
    if ordered := tuple(sorted(set(names))):
        return ordered
    raise UserError(f"there are no labels to learn for side {side!r}")


def _loaded(directory: Path, contents: Contents) -> Tokenizers:
    objects: dict[str, Tokenizer | Labels] = {}
    load = loaders()
    for name, content in set(contents.values()):
        try:
            objects[name] = load[suffix_of(name)](content)
        except ValueError as error:
            raise UserError(f"{directory / name}: {error}") from error
    sides = {side: objects[name] for side, (name, _) in contents.items()}
    return Tokenizers(sides, {side: sha256_of(content) for side, (_, content) in contents.items()})
