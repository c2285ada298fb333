# SPDX-License-Identifier: Apache-2.0
"""Tests of the docs load the components that these describe."""

import pytest


@pytest.fixture(autouse=True)
def forgotten(forget_modules):
    """Forgets the components after each test."""
