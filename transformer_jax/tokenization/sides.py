"""The vocabularies of a run: trained or taken once, kept in its workdir, loaded from there."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from transformer_jax.errors import UserError
from transformer_jax.tokenization.config import TOKENIZERS, TokenizerConfig
from transformer_jax.tokenization.folder import (
    LABELS,
    SYMBOLS,
    Contents,
    loaders,
    read_folder,
    sha256_of,
    suffix_of,
    write_folder,
)
from transformer_jax.tokenization.labels import Labels
from transformer_jax.tokenization.specials import OWN, SpecialTokens
from transformer_jax.tokenization.symbols import Symbols
from transformer_jax.tokenization.tokenizer import Tokenizer
from transformer_jax.tokenization.training import train_model

logger = logging.getLogger(__name__)

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
