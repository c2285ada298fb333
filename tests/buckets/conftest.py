# SPDX-License-Identifier: Apache-2.0
"""Buckets in memory, on an S3 server and on a Cloud Storage emulator."""

import contextlib
import itertools
import os

import fsspec
import pytest

from experiments.faults.emulators import Faults, emulator
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


@pytest.fixture(scope="session")
def emulators():
    """`emulators(kind)`: the emulator of "s3" or "gs", which runs until the session ends."""
    running, before = {}, dict(os.environ)
    with contextlib.ExitStack() as held:

        def of(kind):
            if kind not in running:
                running[kind] = held.enter_context(emulator(kind))
                os.environ.update(running[kind].environ)
                fsspec.config.set_conf_env(fsspec.config.conf)  # which it reads when it starts
            return running[kind]

        yield of
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(params=["s3", "gs"])
def cloud(request, emulators, monkeypatch):
    """An emulator without faults."""
    running = emulators(request.param)
    monkeypatch.setattr(bucket, "PATIENCE_SECONDS", 60.0)
    yield running
    vars(running.faults).update(vars(Faults()))
