"""Set `synthetic_en_de`: English sentences of a grammar with their German translations.

The text is shipped with the package: 20,000 training pairs, and 1,000 of each other split, generated
by experiments/grammar. No sentence is in two splits, on either side. Each sentence of
"test_combinations" combines a verb and an object that do not occur together in other splits.
"""

import gzip
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example
from transformer_jax.errors import UserError

SPLITS = ("train", "valid", "test", "test_combinations")

_FOLDER = Path(__file__).with_name("embedded_text")
_SEED = 0
"""Seed of the shipped text."""


def open_split(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split as one corpus; of "train" the first `config.synthetic_size` pairs.

    Raises:
      UserError: the config asks for more pairs than are shipped, or for another seed.
    """
    sides = zip(_lines(split, "en"), _lines(split, "de"), strict=True)
    pairs: list[Example] = [{"source": source, "target": target} for source, target in sides]
    if config.synthetic_seed != _SEED:
        raise _not_shipped(config, f"data.synthetic_seed is {config.synthetic_seed}", f"{_SEED} is")
    if split != "train":
        return [pairs]
    if config.synthetic_size > len(pairs):
        size = f"data.synthetic_size is {config.synthetic_size}"
        raise _not_shipped(config, size, f"{len(pairs)} pairs are")
    return [pairs[: config.synthetic_size]]


def _lines(split: str, language: str) -> list[str]:
    packed = (_FOLDER / f"{split}.{language}.gz").read_bytes()
    return gzip.decompress(packed).decode().removesuffix("\n").split("\n")


def _not_shipped(config: DataConfig, requested: str, shipped: str) -> UserError:
    return UserError(
        f"{requested}, but {shipped} shipped: generate others with python -m experiments.grammar.write "
        f"--to=DIR --size={config.synthetic_size} --seed={config.synthetic_seed} and read them "
        "with data.name=parallel_text"
    )
