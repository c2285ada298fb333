# SPDX-License-Identifier: Apache-2.0
"""Addresses; files in a bucket: listed, written, read and deleted in spite of faults.

`tests/campaigns/test_clouds.py` repeats a part with servers.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest

from tests.refusals import assert_refused
from transformer_jax.buckets import bucket
from transformer_jax.buckets.bucket import ALLOW_VARIABLE, Bucket, is_address
from transformer_jax.errors import UserError


@pytest.fixture
def sent(at, monkeypatch):
    """Mock that writes: exceptions in its `side_effect` are raised in place of a write."""
    monkeypatch.setattr(bucket, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(at._system, "pipe_file", Mock(wraps=at._system.pipe_file))
    return at._system.pipe_file


def test_files_are_written_listed_read_and_deleted(at, tmp_path):
    assert at.entries() == {}
    at.write("a.txt", b"one")
    at.write("deep/er/b", b"")
    large = os.urandom(9 << 20)  # in several requests
    (tmp_path / "large").write_bytes(large)
    at.upload(tmp_path / "large", "deep/large")
    sizes = {name: entry.size for name, entry in at.entries().items()}
    assert sizes == {"a.txt": 3, "deep/er/b": 0, "deep/large": 9 << 20}
    assert at.entries("deep").keys() == {"deep/er/b", "deep/large"}
    assert at.entries("a.txt").keys() == {"a.txt"}
    assert at.read("a.txt") == b"one" and at.read("deep/er/b") == b""
    at.download("deep/large", tmp_path / "new" / "folder" / "large")
    assert (tmp_path / "new" / "folder" / "large").read_bytes() == large
    before = at.entries("a.txt")["a.txt"].version
    at.write("a.txt", b"two")
    assert at.entries("a.txt")["a.txt"].version != before
    for _ in range(2):
        at.delete("a.txt")
    assert at.entries().keys() == {"deep/er/b", "deep/large"}
    with pytest.raises(bucket.NotInBucketError, match=r"/a\.txt: there is no such file or bucket"):
        at.read("a.txt")


def test_any_content_is_read_back_unchanged(at, tmp_path):
    """gcsfs itself loses a final carriage return, which one in 256 checksums has."""
    contents = [b"a\r", b"\r", b"a\r\n", b"a\n", b"a\n--==0==\nb", b"--==0==--"]
    for content in contents:
        (tmp_path / "file").write_bytes(content)
        at.write("written", content)
        at.upload(tmp_path / "file", "uploaded")
        assert at.read("written") == at.read("uploaded") == content
        assert {entry.size for entry in at.entries().values()} == {len(content)}


def test_one_of_many_concurrent_creates_succeeds(at):
    with ThreadPoolExecutor(6) as pool:
        created = list(pool.map(lambda i: at.create("one", f"by {i}".encode()), range(6)))
    assert sum(created) == 1 and at.read("one") == f"by {created.index(True)}".encode()


def test_requests_that_fail_are_repeated_for_a_while(at, sent, monkeypatch):
    sent.side_effect = [OSError("refused"), TimeoutError("late"), DEFAULT]
    at.write("one", b"content")
    assert sent.call_count == 3 and at.read("one") == b"content"
    monkeypatch.setattr(bucket, "PATIENCE_SECONDS", 0.1)
    for status, counts in ((503, range(2, 99)), (403, [1])):
        error = OSError("from the server")  # as of a client library
        error.code = status
        sent.reset_mock()
        sent.side_effect = error
        words = f"cannot write {at.address}/a: from the server"
        assert_refused({words: partial(at.write, "a", b"")})
        assert sent.call_count in counts


def test_create_succeeds_although_its_first_answer_was_lost(at, sent):
    def write_and_fail(*args, **options):
        sent.side_effect = None
        sent(*args, **options)
        raise OSError("lost")

    sent.side_effect = write_and_fail
    assert at.create("one", b"mine")
    assert not at.create("one", b"other")


def test_all_items_are_processed_before_the_first_error_is_raised():
    call = Mock(side_effect=lambda number: 1 // (number - 1))
    with pytest.raises(ZeroDivisionError):
        bucket.run_in_parallel(call, range(20))
    assert call.call_count == 20


def test_addresses_have_a_protocol(monkeypatch):
    assert all(map(is_address, ("s3://a/b", "gs://a", "memory://x")))
    assert not any(map(is_address, ("runs/a", "/a://b", "", "a:b", Path("runs/a"))))
    monkeypatch.setenv(ALLOW_VARIABLE, "nowhere")
    converted = "s3:/a/b was an address: give it as text"
    unknown = "cannot reach nowhere://a: Protocol not known: nowhere"
    assert_refused({converted: lambda: is_address(Path("s3://a/b"))})
    assert_refused({unknown: lambda: Bucket("nowhere://a")})


def test_only_the_environment_variable_allows_other_protocols_and_nothing_chains(monkeypatch):
    addresses = ["http://h/x", "file:///etc", "S3://a/b", "memory://x", "hf://a/b", "a_b://c"]
    names = [address.partition("://")[0] for address in addresses]
    chains = ["zip://::/etc/x", "s3://a::b", "simplecache::s3://a/b", "zip://x::http://h/x"]
    for use in (is_address, Bucket):
        monkeypatch.delenv(ALLOW_VARIABLE)
        for address, name in zip(addresses, names, strict=True):
            usable = "no address that may be used (s3://, gs://, gcs:// are); to allow it, set"
            words = f"{address!r} is {usable} {ALLOW_VARIABLE}={name} in the environment"
            assert_refused({words: partial(use, address)})
        monkeypatch.setenv(ALLOW_VARIABLE, "zip,http,simplecache,file")
        for chain in chains:
            assert_refused({f"{chain!r} has '::', which chains": partial(use, chain)})
    monkeypatch.setenv(ALLOW_VARIABLE, ", ".join(names))
    assert all(map(is_address, addresses))


def test_errors_of_clients_become_one_line():
    def read_and_fail(error):
        with bucket.as_bucket_errors("cannot read", "s3://a/b"):
            raise error

    failed = "cannot read s3://a/b: "
    errors = {
        f"{failed}there is no such file or bucket": FileNotFoundError("x"),
        "Install s3fs); `make setup EXTRAS=s3`": ImportError("Install s3fs"),
        f"{failed}first": RuntimeError("first\nsecond"),
        f"{failed}RuntimeError": RuntimeError(),
    }
    assert_refused({words: partial(read_and_fail, error) for words, error in errors.items()})
    with pytest.raises(UserError, match="^as it is$"):
        read_and_fail(UserError("as it is"))
