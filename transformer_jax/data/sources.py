"""Where examples come from: the registry of the sets that `data.name` may name.

A set opens as corpora: sequences of examples with random access, `len(corpus)` and `corpus[i]`.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpora, Corpus, Selection
from transformer_jax.data.files import documents
from transformer_jax.data.files.blocks import TextBlocks, open_blocks
from transformer_jax.data.files.json_lines import (
    open_answers,
    open_choices,
    open_conversations,
    open_preferences,
)
from transformer_jax.data.files.pairs import (
    open_pairs,
    open_parallel_text,
    read_json_lines,
    read_tsv,
)
from transformer_jax.data.files.text import expand_paths, open_files
from transformer_jax.data.files.trees import open_bracketed
from transformer_jax.data.files.tsv import read_labeled_tsv, read_tagged_words
from transformer_jax.data.sets import (
    alpaca,
    embedded,
    glue,
    gum,
    hf_datasets,
    multi30k,
    scan,
    tatoeba,
    text_sets,
    tfds,
)
from transformer_jax.errors import UserError
from transformer_jax.registry import Registry


@dataclass(frozen=True)
class SourceSet:
    """An entry of the registry.

    Attributes:
      open: (config, one of `splits`) -> the corpora of that split. Raises UserError where they
        cannot be read.
      splits: the names of the set's splits.
      reads: fields of a config, "section.field", that it reads and other sets may do without; what
        it does not read of theirs is refused where it is set. None: it reads all.
    """

    open: Callable[[DataConfig, str], Sequence[Corpus]]
    splits: tuple[str, ...] = ("train", "valid", "test")
    reads: Collection[str] | None = None


def _open_text(config: DataConfig, split: str) -> Sequence[Corpus]:
    if config.block_megabytes is None or split != "train":
        return documents.open_split(config, split)
    if not config.train_text:
        raise UserError("data.train_text is not set: text needs the path of a text file")
    return [open_blocks(config, config.train_text.split(","))]


def _open_tfds(config: DataConfig, split: str) -> Sequence[Corpus]:
    has_languages = config.source_language or config.target_language
    for name in ("text_field", "label_field", "pair_field"):
        if has_languages and getattr(config, name) is not None:
            raise UserError(f"data.{name} is not read where tfds has languages; leave one out")
    if has_languages:
        return tfds.open_translation_split(config, split)
    return tfds.open_text_split(config, split)


def _public(
    open_split: Callable[..., Sequence[Corpus]], splits: Sequence[str] = (), **given: str
) -> SourceSet:
    """A public set whose files lie in a folder, or one part or direction of it."""
    return SourceSet(partial(open_split, **given), tuple(splits) or SourceSet.splits, ("data.dir",))


_PAIR_FILES = tuple(
    f"data.{split}_{side}" for split in SourceSet.splits for side in ("source", "target")
)
_FILES = tuple(f"data.{split}_text" for split in SourceSet.splits)
_FIELDS = ("source_language", "target_language", "text_field", "label_field", "pair_field")
_TFDS = ("tfds_name", *_FIELDS)
_HF = ("hf_name", "hf_config", *_FIELDS)

SOURCES: Registry[SourceSet] = Registry(
    "data.name",
    {
        "synthetic_en_de": SourceSet(
            embedded.open_split, embedded.SPLITS, ("data.synthetic_size", "data.synthetic_seed")
        ),
        "parallel_text": SourceSet(open_parallel_text, reads=_PAIR_FILES),
        "seq2seq_tsv": SourceSet(partial(open_pairs, read=read_tsv), reads=_FILES),
        "json_lines": SourceSet(partial(open_pairs, read=read_json_lines), reads=_FILES),
        "multi30k_en_de": _public(multi30k.open_split, source_language="en", target_language="de"),
        "multi30k_en_fr": _public(multi30k.open_split, source_language="en", target_language="fr"),
        "tatoeba_de_en": _public(tatoeba.open_split, source_language="de", target_language="en"),
        "tatoeba_en_de": _public(tatoeba.open_split, source_language="en", target_language="de"),
        **{name: _public(scan.open_split, name=name) for name in scan.SETS},
        "text": SourceSet(
            _open_text,
            reads=(*_FILES, "data.documents", "data.text_field", "data.block_megabytes"),
        ),
        "tiny_shakespeare": _public(text_sets.open_tiny_shakespeare),
        "wikitext2": _public(text_sets.open_wikitext2),
        "gutenberg": _public(text_sets.open_gutenberg),
        "labeled_tsv": SourceSet(partial(open_files, read=read_labeled_tsv), reads=_FILES),
        **{
            name: _public(glue.open_split, tuple(task.files), name=name)
            for name, task in glue.TASKS.items()
        },
        "tagged_words": SourceSet(partial(open_files, read=read_tagged_words), reads=_FILES),
        "pos_gum": _public(gum.open_pos),
        "bracketed_trees": SourceSet(
            open_bracketed, reads=(*_FILES, "data.remove_traces", "data.remove_function_tags")
        ),
        "gum_const": _public(gum.open_const),
        "conversations": SourceSet(open_conversations, reads=_FILES),
        "answers": SourceSet(open_answers, reads=_FILES),
        "preferences": SourceSet(open_preferences, reads=_FILES),
        "choices": SourceSet(open_choices, reads=_FILES),
        "alpaca": _public(alpaca.open_split),
        "hf_dataset": SourceSet(
            hf_datasets.open_split,
            reads=("data.dir", "data.block_megabytes", *(f"data.{name}" for name in _HF)),
        ),
        "tfds": SourceSet(_open_tfds, reads=("data.dir", *(f"data.{name}" for name in _TFDS))),
    },
)


def open_split(config: DataConfig, split: str) -> Corpus:
    """Opens one split of the set that `config.name` names.

    Of several sets, "train" joins all of them, and every other split is that of the first.

    Raises:
      UserError: there is no such set or split, its files are missing or cannot be used, or the
        weights or the folders are not as many as the corpora or the sets.
    """
    sets = _find(config.name)
    if split not in sets[0].splits:
        raise UserError(
            f"{config.name} has no split {split!r}: choose one of {', '.join(sets[0].splits)}"
        )
    configs = _config_of_each(config)
    if split != "train":
        return _joined(sets[0].open(configs[0], split))
    opened = [each.open(own, split) for each, own in zip(sets, configs, strict=True)]
    corpora = [corpus for of_one in opened for corpus in of_one]
    if len(corpora) > 1 and any(isinstance(corpus, TextBlocks) for corpus in corpora):
        raise UserError(
            "data.block_megabytes: text in blocks is all that a run trains on; leave the other "
            "sets out, or name their files in data.train_text"
        )
    weights = config.corpus_weights()
    if weights and len(corpora) == 1:
        raise UserError(f"data.weights say nothing about the one corpus of {config.name}")
    if weights and len(weights) != len(corpora):
        raise UserError(
            f"data.weights are {len(weights)}, but {config.name} has {len(corpora)} corpora"
        )
    if config.num_train_examples and isinstance(corpora[0], TextBlocks):
        raise UserError("data.num_train_examples: text in blocks is not counted; leave one out")
    return _first(_joined(corpora, weights), config.num_train_examples)


def open_parts(config: DataConfig, split: str) -> dict[str, Corpus]:
    """The corpora that a split is made of, by name: of several sets the split of each; of one set
    each file, by its name without an ending where these differ, else by its number.

    Raises:
      UserError: as `open_split`; or there is one corpus alone.
    """
    sets, configs = _find(config.name), _config_of_each(config)
    if len(sets) > 1:
        pairs = zip(configs, sets, strict=True)
        return {own.name: _joined(each.open(own, split)) for own, each in pairs}
    corpora = sets[0].open(configs[0], split)
    if len(corpora) == 1:
        raise UserError(
            f"the split {split!r} of {config.name} is one corpus; name several sets or files"
        )
    files = getattr(config, f"{split}_text") or getattr(config, f"{split}_source") or ""
    names = [Path(path).name.partition(".")[0] for path in expand_paths(files, "data")]
    if len(set(names)) != len(corpora):
        names = [str(i) for i in range(len(corpora))]
    return dict(zip(names, corpora, strict=True))


def _first(examples: Corpus, count: int | None) -> Corpus:
    if count is None:
        return examples
    if count > len(examples):
        raise UserError(
            f"data.num_train_examples is {count}, but there are {len(examples)} to train on"
        )
    return Selection(examples, np.arange(count))


def _config_of_each(config: DataConfig) -> list[DataConfig]:
    """The config of each set that is named, with its own name and folder alone."""
    names, folders = config.name.split(","), (config.dir or "").split(",")
    if len(folders) == 1:
        folders *= len(names)
    if len(folders) != len(names):
        raise UserError(
            f"data.dir names {len(folders)} folders, data.name {len(names)} sets: "
            "give one folder for all, or one for each set in their order"
        )
    return [
        dataclasses.replace(config, name=name, dir=folder or None)
        for name, folder in zip(names, folders, strict=True)
    ]


def _joined(corpora: Sequence[Corpus], weights: tuple[float, ...] | None = None) -> Corpus:
    return corpora[0] if len(corpora) == 1 else Corpora(tuple(corpora), weights)


def _find(names: str) -> list[SourceSet]:
    try:
        return [SOURCES.find(name) for name in names.split(",")]
    except ValueError as error:
        raise UserError(f"data.{error}") from error
