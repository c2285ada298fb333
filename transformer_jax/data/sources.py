"""Where examples come from: one registry entry for each set that `data.name` may name.

An example of a translation set is {"source": str, "target": str}. A source is a random-access
sequence of examples: `len(source)`, `source[i]`, picklable, as Grain asks of its data sources.
"""

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from transformer_jax.data import multi30k, synthetic
from transformer_jax.data.text_files import read_pairs
from transformer_jax.errors import UserError

Example = dict[str, str]

SYNTHETIC_HELD_OUT_SIZE = 1000  # pairs of each split that is scored


@dataclass(frozen=True)
class DataConfig:
    """Which set to read, and the longest sequences to make of it.

    Attributes:
      name: an entry of `SOURCES`.
      dir: the folder of a named public set's files; None: below $TRANSFORMER_JAX_DATA or the user
        cache, downloaded there when absent.
      max_source_length, max_target_length: in tokens, the end-of-sequence token included; also
        the row lengths of packed batches.
      train_source ... test_target: the files of `parallel_text`, one sentence a line, plain or .gz.
      synthetic_size: how many training pairs of the synthetic set to draw.
      synthetic_seed: the seed that all its splits are drawn with.
    """

    name: str = "synthetic_en_de"
    dir: str | None = None
    max_source_length: int = 64
    max_target_length: int = 64
    train_source: str | None = None
    train_target: str | None = None
    valid_source: str | None = None
    valid_target: str | None = None
    test_source: str | None = None
    test_target: str | None = None
    synthetic_size: int = 20_000
    synthetic_seed: int = 0

    def __post_init__(self):
        for field in ("max_source_length", "max_target_length"):
            if getattr(self, field) < 2:
                raise ValueError(
                    f"{field} must be at least 2, a token and the end of sequence, "
                    f"not {getattr(self, field)}"
                )
        if self.synthetic_size < 1:
            raise ValueError(f"synthetic_size must be at least 1, not {self.synthetic_size}")
        if self.synthetic_seed < 0:
            raise ValueError(f"synthetic_seed must not be negative, but is {self.synthetic_seed}")


@dataclass(frozen=True)
class SourceSet:
    """An entry of the registry.

    Attributes:
      splits: the names of the set's splits.
      open: (config, one of `splits`) -> the examples of that split.
    """

    splits: tuple[str, ...]
    open: Callable[[DataConfig, str], Sequence[Example]]


def _open_parallel_text(config: DataConfig, split: str) -> Sequence[Example]:
    paths = [_configured_path(config, f"{split}_{side}") for side in ("source", "target")]
    return _open_pairs(*paths, split)


def _configured_path(config: DataConfig, field: str) -> str:
    path = getattr(config, field)
    if not path:
        raise UserError(f"data.{field} is not set: parallel_text needs the path of a text file")
    return os.path.expanduser(path)


def _open_multi30k(
    config: DataConfig, split: str, source_language: str, target_language: str
) -> Sequence[Example]:
    stem = multi30k.FILE_STEMS[split]
    paths = [
        multi30k.MULTI30K.path(f"{stem}.{language}", config.dir)
        for language in (source_language, target_language)
    ]
    return _open_pairs(*paths, split)


def _open_pairs(source_path: str, target_path: str, split: str) -> Sequence[Example]:
    """Only training may lose blank lines: what is scored keeps every line and its order."""
    return read_pairs(source_path, target_path, drop_blank=split == "train")


def _open_synthetic(config: DataConfig, split: str) -> Sequence[Example]:
    size = config.synthetic_size if split == "train" else SYNTHETIC_HELD_OUT_SIZE
    return synthetic.synthetic_split(split, num_examples=size, seed=config.synthetic_seed)


_SPLITS = ("train", "valid", "test")

SOURCES: dict[str, SourceSet] = {
    "synthetic_en_de": SourceSet(synthetic.SPLITS, _open_synthetic),
    "parallel_text": SourceSet(_SPLITS, _open_parallel_text),
    "multi30k_en_de": SourceSet(
        _SPLITS, partial(_open_multi30k, source_language="en", target_language="de")
    ),
    "multi30k_en_fr": SourceSet(
        _SPLITS, partial(_open_multi30k, source_language="en", target_language="fr")
    ),
}


def list_splits(name: str) -> tuple[str, ...]:
    """The splits of the set `name`. Raises UserError for a name that is not in `SOURCES`."""
    return _find(name).splits


def open_split(config: DataConfig, split: str) -> Sequence[Example]:
    """Opens one split of the set that `config.name` names.

    Raises:
      UserError: there is no such set or split, or its files are missing or cannot be used.
    """
    source_set = _find(config.name)
    if split not in source_set.splits:
        raise UserError(
            f"{config.name} has no split {split!r}: choose one of {', '.join(source_set.splits)}"
        )
    return source_set.open(config, split)


def _find(name: str) -> SourceSet:
    if name not in SOURCES:
        nearest = difflib.get_close_matches(name, SOURCES, n=1, cutoff=0)[0]
        raise UserError(
            f"data.name: there is no set {name!r}, the nearest is {nearest!r} "
            f"(all: {', '.join(SOURCES)})"
        )
    return SOURCES[name]
