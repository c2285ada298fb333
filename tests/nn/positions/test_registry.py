"""Encodings by name, and how far each reaches."""

import dataclasses

import pytest

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import POSITIONS, check_reach, encoding_class

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


def test_the_registry():
    assert list(POSITIONS) == NAMES


@pytest.mark.parametrize("name", [name for name in NAMES if name != "learned"])
def test_all_but_a_table_reach_on_without_end(name):
    check_reach(dataclasses.replace(CONFIG, positions=name), 10_000)


def test_sequences_beyond_a_table_are_refused():
    learned = dataclasses.replace(CONFIG, positions="learned")
    check_reach(learned, learned.max_length)
    with pytest.raises(ValueError, match=f"max_length {learned.max_length}, sequences to"):
        check_reach(learned, learned.max_length + 1)


def test_an_unknown_encoding_is_refused():
    with pytest.raises(ValueError, match="not one of none, sinusoidal, .*learned, relative, t5"):
        encoding_class(dataclasses.replace(CONFIG, positions="round"))
