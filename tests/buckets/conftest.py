# SPDX-License-Identifier: Apache-2.0
"""Buckets in memory."""

import itertools

import pytest

from transformer_jax.buckets import bucket
from transformer_jax.buckets.bucket import Bucket

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Puts copies into a folder of the test, and lets requests fail after one second."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(bucket, "PATIENCE_SECONDS", 1.0)


@pytest.fixture
def address():
    """An empty address."""
    return f"memory://bucket-{next(_numbers)}/runs/one"


@pytest.fixture
def at(address):
    """The bucket at `address`."""
    return Bucket(address)
