# SPDX-License-Identifier: Apache-2.0
"""GUM: words with tags, and trees."""

import gzip

import pytest

from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError


def test_each_split_has_its_file(tmp_path):
    for split, stem in (("train", "train"), ("valid", "dev"), ("test", "test")):
        tree = f"(TOP (NP (JJ {split}) (NN word)))\n"
        (tmp_path / f"{stem}.trees.gz").write_bytes(gzip.compress(tree.encode()))
        examples = open_split(DataConfig(name="pos_gum", dir=str(tmp_path)), split)
        assert list(examples) == [{"text": f"{split} word", "tags": "JJ NN"}]


def test_trees_are_read(tmp_path):
    (tmp_path / "dev.trees").write_text("(TOP (UH Oh))\n")
    valid = open_split(DataConfig(name="gum_const", dir=str(tmp_path)), "valid")
    assert list(valid) == [{"source": "Oh", "target": "(TOP (UH Oh))"}]


def test_the_error_for_missing_files_names_their_source(tmp_path):
    with pytest.raises(UserError, match="neither dev.trees nor dev.trees.gz: .*amir-zeldes/gum"):
        open_split(DataConfig(name="pos_gum", dir=str(tmp_path)), "valid")
