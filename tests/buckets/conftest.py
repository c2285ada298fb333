# SPDX-License-Identifier: Apache-2.0
"""Buckets in memory."""

import itertools
import re

import pytest

from transformer_jax.buckets import bucket
from transformer_jax.buckets.bucket import Bucket
from transformer_jax.buckets.mirror import MirrorLayout
from transformer_jax.checkpoints import manifest

LAYOUT = MirrorLayout(
    unit=re.compile(r"steps/[0-9]+(?=/)"),
    seal=manifest.MANIFEST,
    mark=re.compile("(^|/)mark$"),
    temporary=re.compile(r"\.partial$|\.tmp"),
    damage=manifest.find_damage,
)
_numbers = itertools.count()


def files_of(folder):
    """{name: content} of the files below a folder."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


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
