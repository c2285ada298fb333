# SPDX-License-Identifier: Apache-2.0
"""The vocabularies of a run: trained or imported once, stored in its workdir, loaded from there.

The folder contains `sides.json`, which maps each side of the data to a file and its SHA-256, and
these files. Sides share the file `joint` or have one each. The suffix says how to load a file: that
of a `TokenizerKind` (.model for sentencepiece, .json for Hugging Face), .extended.json
(`extended`), .labels.json or .symbols.json. The folder appears complete or not at all.
"""

import base64
import hashlib
import json
import logging
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.ranges import short_repr
from transformer_jax.runtime.files import read_regular, remove
from transformer_jax.summary import Summarized, counted
from transformer_jax.tokenization.config import TOKENIZERS, TokenizerConfig
from transformer_jax.tokenization.specials import DEFAULT_SPECIALS, MASK_PIECE, SpecialTokens
from transformer_jax.tokenization.subword_sampling import Resegmenter
from transformer_jax.tokenization.tokenizer import (
    ListedTokenizer,
    SampledTokenizer,
    SpelledTokens,
    Tokenizer,
    encode_plain,
    replace_lone_surrogates,
    resegmenter_of,
)
from transformer_jax.tokenization.word_level import Labels, SymbolTokenizer

logger = logging.getLogger(__name__)

MAX_TEXTS = 2_000_000
"""Vocabularies hardly change with more texts. A larger corpus is sampled evenly."""

_LABELS_SUFFIX = ".labels.json"
_SYMBOLS_SUFFIX = ".symbols.json"
_EXTENDED_SUFFIX = ".extended.json"
_MANIFEST = "sides.json"
_FILE_NAME = re.compile(r"\w+((?:\.\w+)+)")

LabelSource = Iterable[str] | Labels | SymbolTokenizer
"""Labels of a side: all that occur in the data, in any order and number, or a ready vocabulary."""

FolderContents = Mapping[str, tuple[str, bytes]]
"""Side -> (file name, file content)."""


@dataclass(frozen=True, repr=False)
class Tokenizers(Summarized):
    """One vocabulary for each side of the data: a tokenizer for text, `Labels` for classes.

    Pairs of texts have the sides "source" and "target". With a joint vocabulary both are the same
    object.

    Attributes:
      sides: side -> vocabulary.
      sha256: side -> SHA-256 of its file, in hexadecimal digits.
      sampling: as `tokenizer.sampling`; only `sampled` reads it.
    """

    sides: Mapping[str, Tokenizer | Labels]
    sha256: Mapping[str, str] = field(default_factory=dict)
    sampling: float = 0.0

    def sampled(self, rng: np.random.Generator) -> "Tokenizers":
        """Vocabularies whose tokenizers draw tokens by `rng`, where they can; these ones if
        `sampling` is 0."""
        if not self.sampling:
            return self
        sides: dict[str, Any] = dict(self.sides)
        for side, tokenizer in sides.items():
            if resegmenter_of(tokenizer):
                sides[side] = SampledTokenizer(tokenizer, self.sampling, rng)
        return replace(self, sides=sides)

    def __getitem__(self, side: str) -> Tokenizer | Labels:
        if side not in self.sides:
            raise UserError(f"there is no tokenizer {side!r}; there are: {', '.join(self.sides)}")
        return self.sides[side]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sides)

    def text(self, side: str) -> Tokenizer:
        """Tokenizer of a side of text."""
        tokenizer = self.sides[side]
        assert not isinstance(tokenizer, Labels), f"side {side} holds labels"
        return tokenizer

    def specials(self, side: str) -> SpecialTokens:
        """Special tokens of a side of text; the defaults if there is no such side."""
        return self.text(side).specials if side in self.sides else DEFAULT_SPECIALS

    def labels(self, side: str) -> Labels:
        """Labels of a side of classes."""
        labels = self.sides[side]
        assert isinstance(labels, Labels), f"side {side} holds text"
        return labels

    def summary(self) -> Mapping[str, object]:
        """The vocabulary of each side."""
        return {
            side: f"{type(vocabulary).__name__}, {vocabulary.vocab_size:,} entries"
            for side, vocabulary in self.sides.items()
        }

    @property
    def outputs(self) -> Tokenizer | Labels:
        """Vocabulary of the model's predictions: that of the last side ("target", or labels)."""
        return [*self.sides.values()][-1]

    @property
    def joint(self) -> bool:
        """True if all text shares one vocabulary, as tied embeddings require (section 3.4)."""
        return len({id(side) for side in self.sides.values() if not isinstance(side, Labels)}) == 1


def train_tokenizers(
    config: TokenizerConfig,
    texts: Mapping[str, Iterable[str]],
    directory: str | Path,
    labels: Mapping[str, LabelSource] | None = None,
    needs_mask: bool = False,
) -> Tokenizers:
    """Trains a run's vocabularies, or imports them if the kind is not trained, and stores them.

    Args:
      texts: side -> its texts, which are read once.
      directory: folder to create.
      labels: side -> its labels or symbols.
      needs_mask: add a mask token to vocabularies of a kind that has none.

    Raises:
      UserError: the texts do not fit the config, or a side has no labels.
      ValueError: a side has both texts and labels.
      OSError: `directory` is not empty.
    """
    kind = TOKENIZERS[config.kind]
    if kind.import_files:
        models = {side: kind.import_files(str(config.path), side) for side in texts}
        is_joint = _are_joint(models)
    else:
        is_joint = config.joint and len(texts) > 1
        corpora = {"joint": chain.from_iterable(texts.values())} if is_joint else texts
        trained = {
            name: train_vocabulary(config, _without(config.tag_pieces, corpus), name)
            for name, corpus in corpora.items()
        }
        models = {side: trained["joint" if is_joint else side] for side in texts}
    suffix = kind.suffix
    if config.num_added(needs_mask):
        for model in set(models.values()):
            _check_tags(config.tag_pieces, kind.load(model))
        added = config.adds_mask(needs_mask), config.extra_tokens, config.tag_pieces
        models = {side: extended_content(suffix, model, *added) for side, model in models.items()}
        suffix = _EXTENDED_SUFFIX
    return _store(suffix, models, is_joint, directory, labels)


def _without(tags: Iterable[str], texts: Iterable[str]) -> Iterable[str]:
    """The texts without tags, which would be cut into tokens of the vocabulary."""
    pattern = re.compile("|".join(map(re.escape, tags)))
    return (pattern.sub("", text) for text in texts) if pattern.pattern else texts


def _check_tags(tags: Sequence[str], tokenizer: Tokenizer) -> None:
    """Raises UserError if the vocabulary has a tag as a token."""
    pieces = set(tokenizer.pieces(range(tokenizer.vocab_size))) if tags else set()
    for tag in pieces.intersection(tags):
        raise UserError(f"tokenizer.tags: {tag!r} is a token already; choose another, such as <bt>")


def store_tokenizers(
    kind: str,
    sides: Mapping[str, bytes],
    directory: str | Path,
    labels: Mapping[str, LabelSource] | None = None,
) -> Tokenizers:
    """Stores existing vocabularies and loads them.

    Args:
      kind: an entry of `TOKENIZERS`.
      sides: side -> content of its file. Sides with equal content share one vocabulary.
      directory: folder to create.
      labels: side -> its labels or symbols.

    Raises:
      UserError, ValueError, OSError: see `train_tokenizers`.
    """
    return _store(TOKENIZERS[kind].suffix, sides, _are_joint(sides), directory, labels)


def _are_joint(sides: Mapping[str, bytes]) -> bool:
    return len(sides) > 1 and len(set(sides.values())) == 1


def _store(
    suffix: str,
    sides: Mapping[str, bytes],
    is_joint: bool,
    directory: str | Path,
    labels: Mapping[str, LabelSource] | None,
) -> Tokenizers:
    contents = {
        side: (("joint" if is_joint else side) + suffix, content) for side, content in sides.items()
    }
    _write_folder(_with_labels(contents, labels or {}), Path(directory))
    return load_tokenizers(directory)


def expected_sizes(
    config: TokenizerConfig, sides: Iterable[str], needs_mask: bool = False
) -> dict[str, int]:
    """Vocabulary size of each side before any text is read: from the config, or from the files;
    `needs_mask` as of `train_tokenizers`.

    Raises:
      UserError: the files are missing or damaged.
    """
    kind = TOKENIZERS[config.kind]
    added = config.num_added(needs_mask)
    if not kind.import_files:
        return dict.fromkeys(sides, config.vocab_size + added)
    contents = {side: kind.import_files(str(config.path), side) for side in sides}
    return {side: kind.load(content).vocab_size + added for side, content in contents.items()}


def load_tokenizers(directory: str | Path) -> Tokenizers:
    """Loads the vocabularies of a folder.

    Raises:
      UserError: a file is missing, damaged, or of a kind that is not registered; names the file.
    """
    return _load_contents(Path(directory), _read_folder(Path(directory)))


def copy_tokenizers(
    source: str | Path,
    directory: str | Path,
    labels: Mapping[str, LabelSource] | None = None,
    sides: Iterable[str] = (),
    tags: Iterable[str] = (),
) -> Tokenizers:
    """Copies the vocabularies of a folder to `directory`, and loads them.

    Args:
      source: folder to copy.
      directory: folder to create.
      labels: side -> labels or symbols that replace all labels of `source`, and its vocabularies of
        these sides, except symbols: those of `source` are kept. None: everything is copied.
      sides: sides of text to have. If `source` lacks one and has a single vocabulary for all its
        text, the side gets this vocabulary.
      tags: tokens that each vocabulary of text must have (`tokenizer.tags`).

    Raises:
      UserError: see `load_tokenizers`; or there is no token for a tag.
      ValueError, OSError: see `train_tokenizers`.
    """
    contents = _read_folder(Path(source))
    loaded = _load_contents(Path(source), contents)
    for tag, vocabulary in product(tags, loaded.sides.values()):
        if not isinstance(vocabulary, Labels) and len(vocabulary.encode(tag)) > 1:
            raise UserError(
                f"tokenizer.tags: {source}, whose tokens are used, has none for {tag!r}; leave the "
                "tag out, or train its run with it"
            )
    if labels is not None:
        copied = {
            side: (name, content)
            for side, (name, content) in contents.items()
            if not name.endswith(_LABELS_SUFFIX)
            and (name.endswith(_SYMBOLS_SUFFIX) or side not in labels)
        }
        tokenizer_files = {
            (name, content)
            for name, content in copied.values()
            if not name.endswith(_SYMBOLS_SUFFIX)
        }
        if len(tokenizer_files) == 1:
            copied = dict.fromkeys(sides, *tokenizer_files) | copied
        new_labels = {side: names for side, names in labels.items() if side not in copied}
        contents = _with_labels(copied, new_labels)
    _write_folder(contents, Path(directory))
    logger.info("copied the tokenizers of %s", source)
    return load_tokenizers(directory)


def train_vocabulary(config: TokenizerConfig, texts: Iterable[str], name: str) -> bytes:
    """Trains one vocabulary; returns the content of its file. The same texts give the same file.

    Reads the texts once and holds at most MAX_TEXTS of them.

    Args:
      name: the vocabulary's name in messages.

    Raises:
      UserError: there is no text, or it does not fit `vocab_size`.
    """
    nonempty = (text for text in texts if text.strip() or (config.keeps_whitespace and text))
    sample = sample_texts(map(replace_lone_surrogates, nonempty), MAX_TEXTS)
    if not sample:
        raise UserError(f"the {name} tokenizer has no text to learn from: every line is empty")
    train = TOKENIZERS[config.kind].train
    assert train is not None
    start = time.perf_counter()
    model = train(config, sample, name)
    seconds = time.perf_counter() - start
    message = "trained the %s %s tokenizer on %s in %.1f s"
    logger.info(message, name, config.kind, counted(len(sample), "text"), seconds)
    return model


def sample_texts(texts: Iterable[str], limit: int) -> list[str]:
    """Uniform sample of at most `limit` texts, the same on every call.

    Reservoir sampling (Vitter 1985, algorithm R). Sentencepiece's own sampling differs from process
    to process and cannot be seeded.
    """
    draw = random.Random(0).randrange
    sample: list[str] = []
    for index, text in enumerate(texts):
        if index < limit:
            sample.append(text)
            continue
        slot = draw(index + 1)
        if slot < limit:
            sample[slot] = text
    return sample


def _with_labels(contents: FolderContents, labels: Mapping[str, LabelSource]) -> FolderContents:
    both = contents.keys() & labels.keys()
    if both:
        raise ValueError(f"of side {min(both)!r} there are both texts and labels")
    added = {}
    for side, source in labels.items():
        if isinstance(source, SymbolTokenizer):
            added[side] = (side + _SYMBOLS_SUFFIX, source.to_json())
            continue
        names = source.names if isinstance(source, Labels) else tuple(sorted(set(source)))
        if not names:
            raise UserError(f"there are no labels to learn for side {side!r}")
        stripped = Counter(name.strip() for name in names)
        alike = [name for name in names if stripped[name.strip()] > 1]
        if alike:
            logger.warning("labels that differ only in white space: %s", short_repr(alike))
        added[side] = (side + _LABELS_SUFFIX, Labels(names).to_json())
    return {**contents, **added}


def _load_contents(directory: Path, contents: FolderContents) -> Tokenizers:
    objects: dict[str, Tokenizer | Labels] = {}
    loaders = _loaders()
    for name, content in set(contents.values()):
        try:
            objects[name] = loaders[_suffix_of(name)](content)
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise UserError(_damaged(directory / name)) from error
    sides = {side: objects[name] for side, (name, _) in contents.items()}
    return Tokenizers(sides, {side: _sha256(content) for side, (_, content) in contents.items()})


def _loaders() -> dict[str, Callable[[bytes], Tokenizer | Labels]]:
    """File suffix -> function that loads the file's content."""
    loaders: dict[str, Callable[[bytes], Tokenizer | Labels]] = {
        _LABELS_SUFFIX: Labels.from_json,
        _SYMBOLS_SUFFIX: SymbolTokenizer.from_json,
    }
    of_text = {kind.suffix: kind.load for kind in TOKENIZERS.values()}
    return loaders | of_text | {_EXTENDED_SUFFIX: partial(load_extended, loaders=of_text)}


def _suffix_of(name: str) -> str:
    """Suffixes of a file name. Raises ValueError if no file of a folder could have this name."""
    match = _FILE_NAME.fullmatch(name)
    if not match:
        raise ValueError(f"{name!r} is not the name of a file")
    return match[1]


def _read_folder(directory: Path) -> FolderContents:
    """Reads the files of a folder and checks their SHA-256."""
    path = directory / _MANIFEST
    try:
        entries = json.loads(_read(path)).items()
        sides = {side: (entry["file"], entry["sha256"]) for side, entry in entries}
        suffixes = {_suffix_of(name) for name, _ in sides.values()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(_damaged(path)) from error
    if not sides:
        raise UserError(_damaged(path))
    unknown = sorted(suffixes - _loaders().keys())
    if unknown:
        raise UserError(
            f"{path}: the tokenizer is damaged, or no registered kind stores *{unknown[0]}; name "
            "the module that registers it (--modules)"
        )
    files = {name: _read(directory / name) for name, _ in sides.values()}
    for name, sha256 in sides.values():
        if _sha256(files[name]) != sha256:
            raise UserError(_damaged(directory / name))
    return {side: (name, files[name]) for side, (name, _) in sides.items()}


def _write_folder(contents: FolderContents, directory: Path) -> None:
    """Writes the files and their manifest. Raises OSError if the directory is not empty."""
    partial = directory.with_name(directory.name + ".partial")
    remove(partial)  # left by a run that was killed here
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
        return read_regular(path)
    except OSError as error:
        raise UserError(
            f"{path}: the tokenizer cannot be read ({error.strerror}); "
            "restore the file or train in a new workdir"
        ) from error


def _damaged(path: Path) -> str:
    return f"{path}: the tokenizer is damaged; restore the file or train in a new workdir"


class ExtendedTokenizer(ListedTokenizer):
    """A `Tokenizer` with special tokens after those of another one.

    `encode` reads "[MASK]" and tags in a text as their tokens, and a space before "[MASK]" as part
    of it where words have theirs. No text spells an extra token, whose piece is "⟨extra_0⟩" and so
    on; their ids are `specials.extra`. Decoding drops all.

    Args:
      base: the tokenizer of text.
      masks: add a token for the role `mask`.
      num_extra: number of extra tokens.
      tags: pieces of further tokens, which come last.
    """

    def __init__(self, base: Tokenizer, masks: bool, num_extra: int, tags: Sequence[str] = ()):
        first = base.vocab_size
        extra = tuple(range(first + masks, first + masks + num_extra))
        mask = first if masks else base.specials.mask
        self.base = base
        self.specials = replace(base.specials, mask=mask, extra=extra)
        extra_pieces = [f"⟨extra_{i}⟩" for i in range(num_extra)]
        added = [*[MASK_PIECE] * masks, *extra_pieces, *tags]
        spelled = {piece: first + i for i, piece in enumerate(added) if piece not in extra_pieces}
        base_pieces = base.pieces(range(first))
        self._pieces = [*base_pieces, *added]
        # A piece such as "Ġdog" has the space before it, and so has the mask that stands for it.
        if masks and any(piece[1:] and piece[0] in "▁Ġ" for piece in base_pieces):
            spelled[f" {MASK_PIECE}"] = first
        self.encode = SpelledTokens(spelled, base.encode)

    @property
    def resegmenter(self) -> Resegmenter | None:
        """As of the tokenizer of text; the tokens here stay."""
        return resegmenter_of(self.base)

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text, with "[MASK]" and tags encoded as ordinary characters."""
        return encode_plain(self.base, text)

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        return self.base.encode_words(words)

    def decode(self, ids: Iterable[int]) -> str:
        return self.base.decode(i for i in ids if i < self.base.vocab_size)

    def starts_word(self, ids: Iterable[int]) -> list[bool]:
        size = self.base.vocab_size
        return self.base.starts_word([self.specials.eos if i >= size else i for i in ids])


def extended_content(
    suffix: str, content: bytes, masks: bool, num_extra: int, tags: Sequence[str] = ()
) -> bytes:
    """Content of the file of an `ExtendedTokenizer`.

    Args:
      suffix: of the file of the tokenizer of text.
      content: that file.
    """
    tokenizer = {"suffix": suffix, "content": base64.b64encode(content).decode()}
    added = {"masks": masks, "num_extra": num_extra, "tags": list(tags)}
    return json.dumps(tokenizer | added, indent=1).encode()


def load_extended(
    content: bytes, loaders: Mapping[str, Callable[[bytes], Tokenizer]]
) -> ExtendedTokenizer:
    """Loads an `ExtendedTokenizer`; `loaders` are those of the tokenizers of text, by suffix."""
    stored = json.loads(content)
    base = loaders[stored["suffix"]](base64.b64decode(stored["content"], validate=True))
    tags = stored.get("tags", [])  # the first version had none
    return ExtendedTokenizer(base, stored["masks"], stored["num_extra"], tags)
