# SPDX-License-Identifier: Apache-2.0
"""Position encodings by name, and their numbers of positions."""

import dataclasses

import pytest

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import POSITIONS, check_num_positions, encoding_class

CONFIG = TransformerConfig(d_model=16, num_heads=4, max_length=9)
NAMES = [
    "none",
    "sinusoidal",
    "sinusoidal_halves",
    "learned",
    "relative",
    "t5",
    "deberta",
    "deberta_hf",
    "rotary",
    "alibi",
]


def test_all_encodings_are_registered():
    assert list(POSITIONS) == NAMES


@pytest.mark.parametrize("name", [name for name in NAMES if name != "learned"])
def test_only_learned_positions_are_limited(name):
    check_num_positions(dataclasses.replace(CONFIG, positions=name), 10_000)


def test_sequences_longer_than_the_table_are_rejected():
    learned = dataclasses.replace(CONFIG, positions="learned")
    check_num_positions(learned, learned.max_length)
    with pytest.raises(ValueError, match=f"max_length {learned.max_length}, sequences to"):
        check_num_positions(learned, learned.max_length + 1)


def test_an_unknown_encoding_is_rejected():
    with pytest.raises(ValueError, match="not one of none, sinusoidal, .*learned, relative, t5"):
        encoding_class(dataclasses.replace(CONFIG, positions="round"))
