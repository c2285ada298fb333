"""Variables of the environment that JAX cannot use."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("XLA_FLAGS", "--xla_nonsense", "XLA_FLAGS=--xla_nonsense cannot be used: Unknown flag"),
        ("JAX_ENABLE_X64", "maybe", "invalid truth value 'maybe' for environment 'JAX_ENABLE_X64'"),
        ("JAX_PLATFORMS", "abacus", "JAX_PLATFORMS=abacus cannot be used: Unable to initialize"),
    ],
)
def test_what_jax_cannot_use_is_told_in_one_line(name, value, told):
    words = [sys.executable, "-m", "transformer_jax", "evaluate", "--workdir=absent"]
    answer = subprocess.run(words, env=os.environ | {name: value}, capture_output=True, text=True)
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: ") and answer.stderr.count("\n") == 1
    assert told in answer.stderr
