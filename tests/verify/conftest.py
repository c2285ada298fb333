# SPDX-License-Identifier: Apache-2.0
"""Tiny subjects of verification."""

from pathlib import Path

import pytest

import transformer_jax as tj
from transformer_jax.verify.subject import Subject, shrunk

WRONG = Path(__file__).with_name("wrong_components.py")
CONFIG = Path(__file__).parents[2] / "configs" / "tiny_shakespeare_cpu.py"
SIZES = {
    "model.d_model": 8,
    "model.d_ff": 16,
    "model.num_heads": 2,
    "model.num_layers": 1,
    "data.max_length": 12,
}


@pytest.fixture(scope="session")
def subject_of():
    """`subject_of({"section.field": value})`: a small language model with these fields."""

    def subject(changes=None):
        config = tj.config(CONFIG, SIZES | (changes or {}), modules=WRONG)
        return Subject(shrunk(config, SIZES))

    return subject


@pytest.fixture(scope="session")
def right(subject_of):
    """A subject without a fault."""
    return subject_of()
