"""What checks the shapes in signatures while tests run; conftest.py installs it."""

import jax
import jax.numpy as jnp
import numpy as np
from beartype import beartype

CHECKED = ("nn", "models", "decoding", "losses", "metrics", "training.step")
"""Rooms and modules of the package whose signatures have shapes."""


def checked(function):
    """beartype, but NumPy's arrays, which tests pass, are arrays too.

    Constructors of dataclasses are left alone: `jax.tree.map` calls them with anything.
    """
    if function.__name__ == "__init__":
        return function
    check = beartype(function)

    def with_numpy(*args, **kwargs):
        named = {name: _as_jax(value) for name, value in kwargs.items()}
        return check(*map(_as_jax, args), **named)

    return with_numpy


def _as_jax(value):
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, value)
