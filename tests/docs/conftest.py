# SPDX-License-Identifier: Apache-2.0
"""Tests of the docs load the components that these describe."""

import sys

import pytest

from transformer_jax.nn.parameters import PARAMETERS
from transformer_jax.runs import user_modules
from transformer_jax.runs.settings import CHOICES


@pytest.fixture(autouse=True)
def forget_registrations():
    """Undoes a test's registrations after it, or when called."""
    before = {field: dict(registry) for field, registry in CHOICES.items()}
    rows, known = list(PARAMETERS), set(user_modules._loaded)

    def forget():
        for field, registry in CHOICES.items():
            registry.restore(before[field])
        PARAMETERS[:] = rows
        for name in set(user_modules._loaded) - known:
            del user_modules._loaded[name], sys.modules[name]

    yield forget
    forget()
