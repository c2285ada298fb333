# SPDX-License-Identifier: Apache-2.0
"""Tiny subjects of verification."""

from pathlib import Path

import pytest

import transformer_jax as tj
from transformer_jax.lab.verification.subject import Subject, shrunk
from transformer_jax.runs.config import resolve_file

WRONG = Path(__file__).with_name("wrong_components.py")
CONFIG = Path(__file__).parents[3] / "configs" / "tiny_shakespeare_cpu.py"
SIZES = {
    "model.d_model": 8,
    "model.d_ff": 16,
    "model.num_heads": 2,
    "model.num_layers": 1,
    "data.max_length": 12,
    "model.norm": "rms",
    "model.feed_forward_bias": False,
}
"""Fields of the smallest programs."""


@pytest.fixture(scope="session")
def subject_of():
    """`subject_of({"section.field": value})`: a small language model with these fields."""

    def subject(changes=None):
        settings = resolve_file(CONFIG, SIZES | (changes or {}), WRONG)
        return Subject(shrunk(settings, SIZES))

    return subject


@pytest.fixture(scope="session")
def flags():
    """Flags of a command line: config, sizes, and the module of wrong components."""
    sizes = [f"--config.{name}={value}" for name, value in SIZES.items()]
    return [f"--config={CONFIG}", f"--modules={WRONG}", *sizes]


@pytest.fixture
def small_config():
    """The config of `right`."""
    return tj.config(CONFIG, SIZES, modules=WRONG)


@pytest.fixture(scope="session")
def right(subject_of):
    """A subject without a fault."""
    return subject_of()
