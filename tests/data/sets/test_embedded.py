# SPDX-License-Identifier: Apache-2.0
"""Set `synthetic_en_de`: the shipped pairs."""

import re

import pytest

from transformer_jax.data.config import DataConfig
from transformer_jax.data.sets.embedded import translate_word_for_word
from transformer_jax.data.sources import SOURCES, open_split
from transformer_jax.errors import UserError
from transformer_jax.scoring.text import score_translations


def test_training_uses_the_first_pairs():
    train = open_split(DataConfig(), "train")
    assert len(train) == 20_000
    assert train[0] == {
        "source": "If many sick sisters eat the cake, two students lose an interesting novel next "
        "to this hotel.",
        "target": "Wenn viele kranke Schwestern den Kuchen essen, verlieren zwei Studenten "
        "einen interessanten Roman neben diesem Hotel.",
    }
    assert open_split(DataConfig(synthetic_size=50), "train") == train[:50]


def test_other_splits_do_not_depend_on_the_training_size():
    splits = SOURCES["synthetic_en_de"].splits
    assert splits == ("train", "valid", "test", "test_combinations")
    for split in splits[1:]:
        held_out = open_split(DataConfig(synthetic_size=50), split)
        assert len(held_out) == 1000
        assert held_out == open_split(DataConfig(), split)


def test_the_error_for_text_that_is_not_shipped_names_the_command():
    command = "python -m experiments.grammar.write .*--size=20001"
    with pytest.raises(
        UserError, match=f"data.synthetic_size is 20001, but 20000 pairs are shipped: .*{command}"
    ):
        open_split(DataConfig(synthetic_size=20_001), "train")


def test_the_dictionary_translates_word_for_word():
    assert translate_word_for_word("The man sees Xanadu, but we sleep.") == (
        "Die Mann sieht Xanadu, aber wir schlafen."
    )


def test_the_dictionary_knows_every_word_but_no_grammar():
    train = {
        word
        for pair in open_split(DataConfig(), "train")
        for word in re.findall(r"\w+", pair["source"])
    }
    assert {word for word in train if translate_word_for_word(word) == word} <= {"in", "In"}
    test = open_split(DataConfig(), "test")
    outputs = [translate_word_for_word(pair["source"]) for pair in test]
    bleu = score_translations(outputs, [pair["target"] for pair in test])["bleu"]
    assert 10 < bleu < 20  # 14.3 is what configs/quickstart.py tells
