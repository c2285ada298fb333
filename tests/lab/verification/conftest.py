# SPDX-License-Identifier: Apache-2.0
"""Tiny subjects of verification."""

from pathlib import Path

import pytest

import transformer_jax as tj
from transformer_jax.lab.verification.subject import Subject, shrunk
from transformer_jax.runs.config import nested, read_settings, resolve_file
from transformer_jax.runs.settings import COMMAND

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


@pytest.fixture(scope="module", autouse=True)
def forgotten(forget_modules_of_file):
    """Forgets the wrong components after the tests of a file."""


@pytest.fixture(scope="module")
def subject_of(forgotten):
    """`subject_of({"section.field": value})`: a small language model with these fields, as the
    process of the oracles reads it. It has the state of `origin`, if that is given."""

    def subject(changes=None, origin=None):
        settings = resolve_file(CONFIG, SIZES | (changes or {}), WRONG)
        config = nested(shrunk(settings, SIZES).values)
        return Subject(read_settings(config, {}, COMMAND), origin)

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


@pytest.fixture(scope="module")
def right(subject_of):
    """A subject without a fault."""
    return subject_of()
