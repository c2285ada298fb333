"""The embedded English-German task: true translations of each other, drawn from a grammar.

experiments/grammar drew the text, which is shipped with the package: 20,000 pairs to train on and
1,000 of each other split. No sentence stands in two splits, on either side. Each sentence of
"test_combinations" has a verb with an object that never stand together in another split.
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
"""What the shipped text was drawn with."""


def open_split(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The one corpus of a split; of "train" the first `config.synthetic_size` pairs.

    Raises:
      UserError: more pairs than are shipped, or those of another seed, are asked for.
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


def _not_shipped(config: DataConfig, asked: str, shipped: str) -> UserError:
    return UserError(
        f"{asked}, but {shipped} shipped: draw others with python -m experiments.grammar.write "
        f"--to=DIR --size={config.synthetic_size} --seed={config.synthetic_seed} and read them "
        "with data.name=parallel_text"
    )
