"""Where examples come from: one registry entry for each set that `data.name` may name.

A set yields corpora, random-access sequences of examples: `len(corpus)`, `corpus[i]`.
"""

import dataclasses
import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from transformer_jax.data import synthetic
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpora, Example, Selection
from transformer_jax.data.files import documents
from transformer_jax.data.files import labeled as labeled_files
from transformer_jax.data.files import tagged as tagged_files
from transformer_jax.data.files.pairs import (
    open_pairs,
    open_parallel_text,
    read_json_lines,
    read_tsv,
)
from transformer_jax.data.sets import (
    glue,
    gum,
    multi30k,
    scan,
    tatoeba,
    text_sets,
    tfds_text,
    tfds_translation,
)
from transformer_jax.errors import UserError

SYNTHETIC_HELD_OUT_SIZE = 1000  # pairs of each split that is scored


@dataclass(frozen=True)
class SourceSet:
    """An entry of the registry.

    Attributes:
      splits: the names of the set's splits.
      open: (config, one of `splits`) -> the corpora of that split.
    """

    splits: tuple[str, ...]
    open: Callable[[DataConfig, str], Sequence[Sequence[Example]]]


def _open_synthetic(config: DataConfig, split: str) -> Sequence[Sequence[Example]]:
    size = config.synthetic_size if split == "train" else SYNTHETIC_HELD_OUT_SIZE
    return [synthetic.synthetic_split(split, num_examples=size, seed=config.synthetic_seed)]


def _open_tfds(config: DataConfig, split: str) -> Sequence[Sequence[Example]]:
    has_languages = config.source_language or config.target_language
    return (tfds_translation if has_languages else tfds_text).open_split(config, split)


_SPLITS = ("train", "valid", "test")

SOURCES: dict[str, SourceSet] = {
    "synthetic_en_de": SourceSet(synthetic.SPLITS, _open_synthetic),
    "parallel_text": SourceSet(_SPLITS, open_parallel_text),
    "seq2seq_tsv": SourceSet(_SPLITS, partial(open_pairs, read=read_tsv)),
    "json_lines": SourceSet(_SPLITS, partial(open_pairs, read=read_json_lines)),
    "multi30k_en_de": SourceSet(
        _SPLITS, partial(multi30k.open_split, source_language="en", target_language="de")
    ),
    "multi30k_en_fr": SourceSet(
        _SPLITS, partial(multi30k.open_split, source_language="en", target_language="fr")
    ),
    "tatoeba_de_en": SourceSet(
        _SPLITS, partial(tatoeba.open_split, source_language="de", target_language="en")
    ),
    "tatoeba_en_de": SourceSet(
        _SPLITS, partial(tatoeba.open_split, source_language="en", target_language="de")
    ),
    **{name: SourceSet(_SPLITS, partial(scan.open_split, name=name)) for name in scan.SETS},
    "text": SourceSet(_SPLITS, documents.open_split),
    "tiny_shakespeare": SourceSet(_SPLITS, text_sets.open_tiny_shakespeare),
    "wikitext2": SourceSet(_SPLITS, text_sets.open_wikitext2),
    "gutenberg": SourceSet(_SPLITS, text_sets.open_gutenberg),
    "labeled_tsv": SourceSet(_SPLITS, labeled_files.open_labeled_tsv),
    **{
        name: SourceSet(tuple(task.files), partial(glue.open_split, name=name))
        for name, task in glue.TASKS.items()
    },
    "tagged_words": SourceSet(_SPLITS, tagged_files.open_tagged_words),
    "pos_gum": SourceSet(_SPLITS, gum.open_pos),
    "tfds": SourceSet(_SPLITS, _open_tfds),
}


def list_splits(name: str) -> tuple[str, ...]:
    """The splits of the set `name`, of several sets those of the first.

    Raises UserError for a name that is not in `SOURCES`.
    """
    return _find(name)[0].splits


def open_split(config: DataConfig, split: str) -> Sequence[Example]:
    """Opens one split of the set that `config.name` names; of several sets, all to train on, else
    the first.

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
    weights = config.corpus_weights()
    if weights and len(weights) != len(corpora):
        raise UserError(
            f"data.weights are {len(weights)}, but {config.name} has {len(corpora)} corpora"
        )
    return _first(_joined(corpora, weights), config.num_train_examples)


def _first(examples: Sequence[Example], count: int | None) -> Sequence[Example]:
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


def _joined(corpora: Sequence[Sequence[Example]], weights=None) -> Sequence[Example]:
    return corpora[0] if len(corpora) == 1 else Corpora(tuple(corpora), weights)


def _find(names: str) -> list[SourceSet]:
    for name in names.split(","):
        if name not in SOURCES:
            nearest = difflib.get_close_matches(name, SOURCES, n=1, cutoff=0)[0]
            raise UserError(
                f"data.name: there is no set {name!r}, the nearest is {nearest!r} "
                f"(all: {', '.join(SOURCES)})"
            )
    return [SOURCES[name] for name in names.split(",")]
