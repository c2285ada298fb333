# SPDX-License-Identifier: Apache-2.0
"""Registry of the data sets that `data.name` selects, and functions that open their splits.

A split opens as one or more corpora: sequences of examples with random access, `len(corpus)` and
`corpus[i]`.
"""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpora, Corpus, Example, Parsed, Selection
from transformer_jax.data.files.lines import expand_paths, open_files
from transformer_jax.data.files.text import TextBlocks
from transformer_jax.errors import MissingSplitError, UserError
from transformer_jax.registry import Registry, imported

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceSet:
    """Data set in the registry.

    Attributes:
      open: (config, split) -> corpora of the split. Raises UserError if they cannot be read.
      splits: names of the set's splits.
      reads: optional config fields, as "section.field", that the set reads. A config that sets an
        optional field of other sets only is rejected. None: it reads all fields.
      keys: those that its examples may have; None: any.
    """

    open: Callable[[DataConfig, str], Sequence[Corpus]]
    splits: tuple[str, ...] = ("train", "valid", "test")
    reads: Collection[str] | None = None
    keys: Collection[str] | None = None


_PAIR = ("source", "target")
_TEXT = ("text",)
_LABELED_TEXT = ("text", "label")
_TAGGED_TEXT = ("text", "tags")
_CONVERSATION = ("turns", "text")
_COLUMNS = (*_PAIR, *_LABELED_TEXT, "pair")
_PAIR_FILES = [f"{split}_{side}" for split in SourceSet.splits for side in _PAIR]
_FILES = [f"{split}_text" for split in SourceSet.splits]
_ROWS = [*_FILES, "on_bad_row"]
_FIELDS = ("source_language", "target_language", "text_field", "label_field", "pair_field")
_LIBRARY = ("dir", "on_bad_row", *_FIELDS)


def _imported(path: str) -> Callable[..., Any]:
    return imported(f"{__package__}.{path}")


def _opened(
    path: str, keys: Sequence[str], *reads: str, splits: tuple[str, ...] = SourceSet.splits
) -> SourceSet:
    """A set that a function of this package opens, which may tell sets apart by `config.name`.

    Args:
      reads: fields of the section `data`.
    """
    return SourceSet(_imported(path), splits, [f"data.{field}" for field in reads], keys)


def _user_rows(path: str, keys: Sequence[str]) -> SourceSet:
    """A set in rows of the user's files, one corpus per file, read with `read(path, split,
    on_bad_row)`."""
    read = _imported(path)

    def open_split(config: DataConfig, split: str) -> Sequence[Corpus]:
        return open_files(config, split, lambda file: read(file, split, config.on_bad_row))

    return SourceSet(open_split, reads=[f"data.{field}" for field in _ROWS], keys=keys)


_multi30k = _opened("sets.public:open_multi30k", _PAIR, "dir")
_tatoeba = _opened("sets.public:open_tatoeba", _PAIR, "dir")
_scan = _opened("sets.public:open_scan", _PAIR, "dir")
_glue = _opened("sets.public:open_glue", _LABELED_TEXT, "dir")
_labeled_glue = dataclasses.replace(_glue, splits=("train", "valid"))  # the public labels
_table = _opened("files.table:open_table", _COLUMNS, *_ROWS, *_FIELDS)
_TREE_FIELDS = ("remove_traces", "remove_function_tags")

SOURCES: Registry[SourceSet] = Registry(
    "data.name",
    {
        "synthetic_en_de": _opened(
            "sets.embedded:open_split",
            _PAIR,
            "synthetic_size",
            splits=(*SourceSet.splits, "test_combinations"),
        ),
        "parallel_text": _opened("files.pairs:open_parallel_text", _PAIR, *_PAIR_FILES),
        "seq2seq_tsv": _user_rows("files.pairs:read_tsv", _PAIR),
        "json_lines": _user_rows("files.pairs:read_json_lines", _PAIR),
        "multi30k_en_de": _multi30k,
        "multi30k_de_en": _multi30k,
        "multi30k_en_fr": _multi30k,
        "tatoeba_de_en": _tatoeba,
        "tatoeba_en_de": _tatoeba,
        "scan_simple": _scan,
        "scan_length": _scan,
        "scan_addprim_jump": _scan,
        "text": _opened(
            "files.text:open_text", _TEXT, *_ROWS, "documents", "text_field", "block_megabytes"
        ),
        "tiny_shakespeare": _opened("sets.public:open_tiny_shakespeare", _TEXT, "dir"),
        "wikitext2": _opened("sets.public:open_wikitext2", _TEXT, "dir"),
        "gutenberg": _opened("sets.public:open_gutenberg", _TEXT, "dir"),
        "table": _table,
        "labeled_tsv": _table,  # its name in earlier configs
        "sst2": _labeled_glue,
        "cola": _labeled_glue,
        "mrpc": _glue,
        "rte": _labeled_glue,
        "tagged_words": _opened("files.trees:open_tagged_words", _TAGGED_TEXT, *_FILES),
        "pos_gum": _opened("sets.public:open_pos", _TAGGED_TEXT, "dir"),
        "bracketed_trees": _opened("files.trees:open_bracketed", _PAIR, *_FILES, *_TREE_FIELDS),
        "gum_const": _opened("sets.public:open_const", _PAIR, "dir"),
        "conversations": _user_rows("files.json_lines:read_conversations", _CONVERSATION),
        "answers": _user_rows("files.json_lines:read_answers", _PAIR),
        "preferences": _user_rows(
            "files.json_lines:read_preferences", (*_CONVERSATION, "chosen", "rejected")
        ),
        "choices": _user_rows(
            "files.json_lines:read_choices", ("context", "choices", "answer", "text")
        ),
        "alpaca": _opened("sets.public:open_alpaca", _CONVERSATION, "dir"),
        "hf_dataset": _opened(
            "sets.libraries:open_hf", _COLUMNS, *_LIBRARY, "hf_name", "hf_config", "block_megabytes"
        ),
        "tfds": _opened("sets.libraries:open_tfds", _COLUMNS, *_LIBRARY, "tfds_name"),
    },
)


def open_split(config: DataConfig, split: str) -> Corpus:
    """Opens a split of the data sets in `config.name`.

    With several sets, "train" concatenates all of them; other splits are those of the first set.

    Raises:
      UserError: the set or split does not exist, its files are missing or cannot be used, or the
        number of weights or folders does not match the corpora or sets.
    """
    splits = find_sets(config.name)[0].splits
    if split not in splits:
        raise MissingSplitError(
            f"{config.name} has no split {split!r}: choose one of {', '.join(splits)}"
        )
    configs = _config_per_set(config)
    if split != "train":
        return _concatenate(_open(configs[0], split))
    corpora = [corpus for of_set in configs for corpus in _open(of_set, split)]
    if len(corpora) > 1 and any(isinstance(corpus, TextBlocks) for corpus in corpora):
        raise UserError(
            "data.block_megabytes: text in blocks cannot be combined with other sets; leave them "
            "out, or add their files to data.train_text"
        )
    weights = config.corpus_weights()
    if weights and len(corpora) == 1:
        raise UserError(f"data.weights has no effect: {config.name} is one corpus")
    if weights and len(weights) != len(corpora):
        raise UserError(
            f"data.weights has {len(weights)} numbers, but {config.name} has {len(corpora)} corpora"
        )
    corpora = _with_tags(corpora, config)
    return _first(_concatenate(corpora, weights), config.num_train_examples)


def _with_tags(corpora: list[Corpus], config: DataConfig) -> list[Corpus]:
    """Puts the tag of each corpus, if it has one, before a side of its examples."""
    if config.tags is None:
        return corpora
    tags = config.tags.split(",")
    if len(tags) != len(corpora):
        raise UserError(
            f"data.tags has {len(tags)} tags, but {config.name} has {len(corpora)} corpora: write "
            "one for each, separated by commas, empty for none"
        )
    if all(tags):
        logger.warning(
            "data.tags: each training example has a tag, and other splits have none; write tags "
            "into the text that is evaluated or predicted"
        )
    return [_with_tag(*pair, config.name) for pair in zip(corpora, tags, strict=True)]


def _with_tag(corpus: Corpus, side_and_tag: str, name: str) -> Corpus:
    if not side_and_tag:
        return corpus
    sides = corpus[0].keys()
    stated, _, tag = side_and_tag.rpartition(":")
    side = stated or ("source" if "source" in sides else "text")
    if side not in sides:
        raise UserError(f"data.tags: {name} has no {side}, but {' and '.join(sorted(sides))}")
    return Parsed(corpus, functools.partial(tag_example, side, tag))


def tag_example(side: str, tag: str, example: Example) -> Example:
    """The example with a tag before one of its texts."""
    return {**example, side: tag + example[side]}


def open_corpora(config: DataConfig, split: str) -> dict[str, Corpus]:
    """Opens the corpora of a split by name.

    Several sets: one corpus per set. One set: one corpus per file, by the file's name without its
    ending, or by its number if names are equal.

    Raises:
      UserError: as `open_split`, or there is only one corpus.
    """
    configs = _config_per_set(config)
    if len(configs) > 1:
        return {of_set.name: _concatenate(_open(of_set, split)) for of_set in configs}
    corpora = _open(configs[0], split)
    if len(corpora) == 1:
        raise UserError(
            f"the split {split!r} of {config.name} is one corpus; set several sets or files"
        )
    files = getattr(config, f"{split}_text") or getattr(config, f"{split}_source") or ""
    paths = dict.fromkeys(expand_paths(files, "data"))
    names = [Path(path).name.partition(".")[0] for path in paths]
    if len(set(names)) != len(corpora):
        names = [str(i) for i in range(len(corpora))]
    return dict(zip(names, corpora, strict=True))


def _first(examples: Corpus, count: int | None) -> Corpus:
    if count is None:
        return examples
    if count > len(examples):
        unit = "examples"
        if len(examples) and examples[0].keys() == {"text"}:
            unit = "documents: it counts those of running text (data.documents says what one is)"
        raise UserError(f"data.num_train_examples is {count}, but there are {len(examples)} {unit}")
    return Selection(examples, np.arange(count))


def _config_per_set(config: DataConfig) -> list[DataConfig]:
    """Config of each set in `config.name`, with its own name and folder."""
    names = config.name.split(",")
    folders = (config.dir or "").split(",")
    if len(folders) not in (1, len(names)):
        raise UserError(
            f"data.dir names {len(folders)} folders, data.name {len(names)} sets: "
            "set one folder for all, or one for each set, in order"
        )
    return [
        dataclasses.replace(config, name=name, dir=folder or None)
        for name, folder in zip(names, itertools.cycle(folders), strict=False)
    ]


def _open(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Corpora of a config of one set."""
    (source_set,) = find_sets(config.name)
    return source_set.open(config, split)


def _concatenate(corpora: Sequence[Corpus], weights: tuple[float, ...] | None = None) -> Corpus:
    return corpora[0] if len(corpora) == 1 else Corpora(tuple(corpora), weights)


def find_sets(names: str) -> list[SourceSet]:
    """The data sets that `data.name` lists; UserError if one does not exist."""
    try:
        return [SOURCES.find(name) for name in names.split(",")]
    except ValueError as error:
        raise UserError(f"data.{error}") from error
