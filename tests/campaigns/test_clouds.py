# SPDX-License-Identifier: Apache-2.0
"""Buckets on an S3 server and on a Cloud Storage emulator, with and without faults."""

import contextlib
import os
import socket
import time
from urllib.parse import urlsplit

import fsspec
import pytest

from tests.buckets.test_bucket import (  # noqa: F401
    test_any_content_is_read_back_unchanged,
    test_files_are_written_listed_read_and_deleted,
    test_one_of_many_concurrent_creates_succeeds,
)
from tests.campaigns.faults.emulators import Faults, emulator
from transformer_jax.buckets import bucket
from transformer_jax.buckets.bucket import Bucket, BucketError, NotInBucketError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Puts copies into a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module", params=["s3", "gs"])
def running(request):
    """An emulator."""
    with emulator(request.param) as cloud, pytest.MonkeyPatch.context() as patch:
        for name, value in cloud.environ.items():
            patch.setenv(name, value)
        fsspec.config.set_conf_env(fsspec.config.conf)  # which it reads when it starts
        yield cloud


@pytest.fixture
def cloud(running, monkeypatch):
    """The emulator without faults."""
    monkeypatch.setattr(bucket, "PATIENCE_SECONDS", 60.0)
    yield running
    vars(running.faults).update(vars(Faults()))


@pytest.fixture
def at(cloud, request):
    """An empty folder of the emulator."""
    return Bucket(f"{cloud.address}/{request.node.name.replace('[', '_').strip(']')}")


def test_create_succeeds_although_its_first_answer_was_lost(cloud, at):
    class Draw:
        """Lets the first request arrive and loses its answer."""

        drawn = 0

        def random(self):
            self.drawn += 1
            return 0.9 if self.drawn < 3 else 1.0

    cloud.faults.draw, cloud.faults.lost = Draw(), 1.0
    assert at.create("one", b"mine")
    assert cloud.faults.draw.drawn > 2
    assert not at.create("one", b"other")


def test_requests_that_are_refused_lost_or_late_are_repeated(cloud, at):
    cloud.faults.refused, cloud.faults.lost, cloud.faults.delayed = 0.2, 0.2, (0.3, 0.1)
    contents = {f"{number}": os.urandom(number) for number in range(6)}
    for name, content in contents.items():
        at.write(name, content)
    assert {name: at.read(name) for name in at.entries()} == contents


def test_final_errors_are_raised_at_once(cloud, at):
    cloud.faults.forbidden = True
    since = time.monotonic()
    with pytest.raises(BucketError, match=f"cannot write {at.address}/a: .*(403|orbidden)"):
        at.write("a", b"")
    cloud.faults.forbidden = False
    with pytest.raises(NotInBucketError, match=r"cannot write .*/none/run/a: there is no"):
        Bucket(f"{cloud.address[:5]}none/run").write("a", b"")
    assert time.monotonic() - since < 10


@pytest.mark.parametrize("running", ["s3"], indirect=True)  # a client that gives up soon
def test_a_request_that_keeps_failing_raises_in_the_end(cloud, at, monkeypatch):
    monkeypatch.setattr(bucket, "PATIENCE_SECONDS", 0.0)
    cloud.faults.refused = 1.0
    with pytest.raises(BucketError, match=f"cannot write {at.address}/a: "):
        at.write("a", b"")


@pytest.mark.parametrize("running", ["s3"], indirect=True)
def test_the_emulator_stores_nothing_of_an_upload_that_was_cut(cloud, at):
    """Campaigns of kills rely on it."""
    at.write("whole", b"12345678")
    server = urlsplit(cloud.environ["AWS_ENDPOINT_URL"])
    path = at.address.removeprefix("s3:/")
    head = "PUT {} HTTP/1.1\r\nHost: s3.us-east-1.amazonaws.com\r\n{}\r\n\r\n"
    for name, length, sent in [
        ("cut", "Content-Length: 8", b"123"),
        ("cut_chunk", "Transfer-Encoding: chunked", b"8\r\n123"),
    ]:
        with socket.create_connection((server.hostname, server.port)) as client:
            client.sendall(head.format(f"{path}/{name}", length).encode() + sent)
            client.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                assert client.recv(1) == b""
    assert set(at.entries()) == {"whole"}
