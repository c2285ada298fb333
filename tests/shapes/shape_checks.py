# SPDX-License-Identifier: Apache-2.0
"""Checks shapes in signatures while tests run; conftest.py installs it."""

from collections.abc import Iterator

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from beartype import beartype

CHECKED = ("nn", "models", "decoding", "losses", "metrics", "training.step")
"""Packages and modules whose signatures have shapes."""
TESTS = ("nn/", "shapes/", "test_losses.py", "test_metrics.py", "training/test_step.py")
TESTS += tuple(f"models/test_{name}.py" for name in ("activations", "classifier", "ensemble"))
TESTS += ("models/test_recurrent.py", "decoding/")
"""Folders and files below tests/ whose tests check them: each signature somewhere, because checks
take a quarter of a test's time."""
OTHERS = ("nn/test_layer_pattern.py", "nn/test_layer_scan.py", "nn/test_layers.py")
OTHERS += ("decoding/test_beam_tree.py",)
"""Files in these folders whose tests have no signatures of their own."""
UNCHECKED = "transformer_jax.models.patches"


def is_checking(path):
    """Whether the tests of a file below tests/ check shapes."""
    return path.startswith(TESTS) and not path.startswith(OTHERS)


def checked(function):
    """Type checker beartype, which here accepts NumPy arrays as arrays, because tests pass them.

    Constructors of dataclasses are not checked, as `jax.tree.map` calls them with any values, nor
    is `models.patches`: a patched model has the class and the attributes of another one, in which
    the checker's messages recurse without end.
    """
    if function.__name__ == "__init__" or function.__module__ == UNCHECKED:
        return function
    check = beartype(function)

    def with_numpy(*args, **kwargs):
        named = {name: _as_jax(value) for name, value in kwargs.items()}
        return check(*map(_as_jax, args), **named)

    return with_numpy


def _as_jax(value):
    if isinstance(value, np.ndarray):
        return jnp.asarray(value)
    if isinstance(value, jax.Array | nn.Module | Iterator | str | int | float | None):
        return value
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, value)
