"""Where examples come from: one registry entry for each set that `data.name` may name.

A set yields corpora, random-access sequences of examples: `len(corpus)`, `corpus[i]`.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from transformer_jax.data import multi30k, scan, synthetic, tatoeba, tfds_translation
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpora, Example
from transformer_jax.data.pair_files import drop_blank, read_aligned, read_json_lines, read_tsv
from transformer_jax.data.text_files import expand_paths
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


def _open_parallel_text(config: DataConfig, split: str) -> Sequence[Sequence[Example]]:
    fields = [f"{split}_source", f"{split}_target"]
    sources, targets = (_configured_paths(config, field) for field in fields)
    if len(sources) != len(targets):
        raise UserError(
            f"data.{fields[0]} names {len(sources)} files, data.{fields[1]} {len(targets)}; "
            "file i of one must be aligned with file i of the other"
        )
    return [
        _for_split(read_aligned(*pair), split, " and ".join(pair))
        for pair in zip(sources, targets, strict=True)
    ]


def _open_files(
    config: DataConfig, split: str, read: Callable[[str], Sequence[Example]]
) -> Sequence[Sequence[Example]]:
    paths = _configured_paths(config, f"{split}_text")
    return [_for_split(read(path), split, path) for path in paths]


def _configured_paths(config: DataConfig, field: str) -> list[str]:
    paths = getattr(config, field)
    if not paths:
        raise UserError(f"data.{field} is not set: {config.name} needs the path of a text file")
    return expand_paths(paths, f"data.{field}")


def _open_multi30k(
    config: DataConfig, split: str, source_language: str, target_language: str
) -> Sequence[Sequence[Example]]:
    paths = [multi30k.path(config, split, one) for one in (source_language, target_language)]
    return [_for_split(read_aligned(*paths), split, " and ".join(paths))]


def _for_split(pairs: Sequence[Example], split: str, where: str) -> Sequence[Example]:
    """Only training may lose blank lines: what is scored keeps every line and its order."""
    return drop_blank(pairs, where) if split == "train" else pairs


def _open_synthetic(config: DataConfig, split: str) -> Sequence[Sequence[Example]]:
    size = config.synthetic_size if split == "train" else SYNTHETIC_HELD_OUT_SIZE
    return [synthetic.synthetic_split(split, num_examples=size, seed=config.synthetic_seed)]


_SPLITS = ("train", "valid", "test")

SOURCES: dict[str, SourceSet] = {
    "synthetic_en_de": SourceSet(synthetic.SPLITS, _open_synthetic),
    "parallel_text": SourceSet(_SPLITS, _open_parallel_text),
    "seq2seq_tsv": SourceSet(_SPLITS, partial(_open_files, read=read_tsv)),
    "json_lines": SourceSet(_SPLITS, partial(_open_files, read=read_json_lines)),
    "multi30k_en_de": SourceSet(
        _SPLITS, partial(_open_multi30k, source_language="en", target_language="de")
    ),
    "multi30k_en_fr": SourceSet(
        _SPLITS, partial(_open_multi30k, source_language="en", target_language="fr")
    ),
    "tatoeba_de_en": SourceSet(
        _SPLITS, partial(tatoeba.open_split, source_language="de", target_language="en")
    ),
    "tatoeba_en_de": SourceSet(
        _SPLITS, partial(tatoeba.open_split, source_language="en", target_language="de")
    ),
    **{name: SourceSet(_SPLITS, partial(scan.open_split, name=name)) for name in scan.SETS},
    "tfds": SourceSet(_SPLITS, tfds_translation.open_split),
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
        weights are not as many as the corpora.
    """
    sets = _find(config.name)
    if split not in sets[0].splits:
        raise UserError(
            f"{config.name} has no split {split!r}: choose one of {', '.join(sets[0].splits)}"
        )
    if split != "train":
        return _joined(sets[0].open(config, split))
    corpora = [corpus for each in sets for corpus in each.open(config, split)]
    weights = config.corpus_weights()
    if weights and len(weights) != len(corpora):
        raise UserError(
            f"data.weights are {len(weights)}, but {config.name} has {len(corpora)} corpora"
        )
    return _joined(corpora, weights)


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
