# SPDX-License-Identifier: Apache-2.0
"""GUM, the Georgetown University Multilayer corpus: trees of English texts in many genres.

Zeldes 2017, "The GUM corpus: creating multilayer resources in the classroom". The tags are the
extended set of the Penn Treebank. Annotations CC BY 4.0; the texts have licenses of their own, some
of them non-commercial.
"""

from collections.abc import Sequence

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus
from transformer_jax.data.files.trees import read_parses, read_tagged_trees
from transformer_jax.data.sets.download import PublicSet

GUM = PublicSet(
    name="gum",
    files={},
    source="github.com/amir-zeldes/gum has the trees of each document in const/, and the "
    "documents of dev and test in splits.md; write one tree per line",
)

_FILES = {"train": "train.trees", "valid": "dev.trees", "test": "test.trees"}


def open_pos(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of `pos_gum` as one corpus: words and their part-of-speech tags.

    Raises:
      UserError: the file is missing, or has an invalid tree.
    """
    return [read_tagged_trees(GUM.path(_FILES[split], config.dir))]


def open_const(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of `gum_const` as one corpus: sentences and their trees.

    Raises:
      UserError: the file is missing, or has an invalid tree.
    """
    return [read_parses(GUM.path(_FILES[split], config.dir))]
