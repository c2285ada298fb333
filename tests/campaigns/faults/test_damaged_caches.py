# SPDX-License-Identifier: Apache-2.0
"""A short form of the campaign, without compiled programs (JAX's own cache)."""

import os

import fsspec
import pytest

from tests.campaigns.faults import damaged_caches
from transformer_jax.data.batches import token_cache


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(token_cache, "_MIN_BYTES", 100)
    monkeypatch.setattr(token_cache, "_PART_BYTES", 2000)
    monkeypatch.setenv("TRANSFORMER_JAX_ALLOW_ADDRESSES", "memory")
    monkeypatch.setenv("XDG_CACHE_HOME", "set by the campaign")
    fsspec.filesystem("memory").pipe_file("/bucket/data/fetched.txt", b"text")


@pytest.mark.parametrize("name", [name for name in damaged_caches.CACHES if "compiled" not in name])
def test_a_damaged_cache_costs_nothing_but_time(tmp_path, name):
    counts = damaged_caches.run(name, tmp_path, flips=5)
    assert counts["cases"] > 10
    assert (counts["tracebacks"], counts["lost"], counts["followed"]) == (0, 0, 0)
