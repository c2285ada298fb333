"""GUM, the Georgetown University Multilayer corpus: English of many genres, as trees.

Zeldes 2017, "The GUM corpus: creating multilayer resources in the classroom". The tags are of the
Penn Treebank's extended set. Annotations CC BY 4.0; the texts have licences of their own, some of
them for use that is not commercial.
"""

from collections.abc import Sequence

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus
from transformer_jax.data.files.trees import read_parses
from transformer_jax.data.files.tsv import read_tagged_trees
from transformer_jax.data.sets.download import PublicSet

GUM = PublicSet(
    name="gum",
    files={},
    source="github.com/amir-zeldes/gum has the trees of each document in const/, its splits.md "
    "says which are of dev and test; write one tree a line",
)

_FILES = {"train": "train.trees", "valid": "dev.trees", "test": "test.trees"}


def open_pos(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The one corpus of a split of `pos_gum`: words and their part-of-speech tags.

    Raises:
      UserError: the file is missing, or holds something else than trees.
    """
    return [read_tagged_trees(GUM.path(_FILES[split], config.dir))]


def open_const(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The one corpus of a split of `gum_const`: sentences and their trees; as `open_pos`."""
    return [read_parses(GUM.path(_FILES[split], config.dir))]
