# SPDX-License-Identifier: Apache-2.0
"""Addresses; files in a bucket: listed, written, read and deleted in spite of faults.

`tests/campaigns/test_clouds.py` repeats a part with servers.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from transformer_jax.buckets import bucket
from transformer_jax.buckets.bucket import (
    ALLOW_VARIABLE,
    Bucket,
    BucketError,
    NotInBucketError,
    as_bucket_errors,
    is_address,
    run_in_parallel,
)
from transformer_jax.errors import UserError


@pytest.fixture
def there(at):
    """An empty folder of a bucket in memory."""
    return at


@pytest.fixture
def failing(there, monkeypatch):
    """`failing(errors, arrives)`: the next writes raise the errors, if `arrives` after they wrote;
    returns the list of the calls."""

    def fail(*errors, arrives=False):
        calls, left, write = [], [*errors], there._system.pipe_file

        def pipe_file(path, content, **options):
            calls.append(path)
            error = left.pop(0) if left else None
            if error is None or arrives:
                write(path, content, **options)
            if error is not None:
                raise error

        monkeypatch.setattr(there._system, "pipe_file", pipe_file)
        return calls

    monkeypatch.setattr(bucket, "_FIRST_PAUSE", 0.01)
    return fail


def test_files_are_written_listed_read_and_deleted(there, tmp_path):
    assert there.entries() == {}
    there.write("a.txt", b"one")
    there.write("deep/er/b", b"")
    large = os.urandom(9 << 20)  # in several requests
    (tmp_path / "large").write_bytes(large)
    there.upload(tmp_path / "large", "deep/large")
    assert {name: one.size for name, one in there.entries().items()} == {
        **{"a.txt": 3, "deep/er/b": 0, "deep/large": 9 << 20}
    }
    assert there.entries("deep").keys() == {"deep/er/b", "deep/large"}
    assert there.entries("a.txt").keys() == {"a.txt"}
    assert there.read("a.txt") == b"one" and there.read("deep/er/b") == b""
    there.download("deep/large", tmp_path / "new" / "folder" / "large")
    assert (tmp_path / "new" / "folder" / "large").read_bytes() == large
    before = there.entries("a.txt")["a.txt"].version
    there.write("a.txt", b"two")
    assert there.entries("a.txt")["a.txt"].version != before
    for _ in range(2):
        there.delete("a.txt")
    assert there.entries().keys() == {"deep/er/b", "deep/large"}
    with pytest.raises(NotInBucketError, match=r"/a\.txt: there is no such file or bucket"):
        there.read("a.txt")


@pytest.mark.parametrize(
    "content", [b"a\r", b"\r", b"a\r\n", b"a\n", b"a\n--==0==\nb", b"--==0==--"]
)
def test_any_content_is_read_back_unchanged(there, tmp_path, content):
    """gcsfs itself loses a final carriage return, which one in 256 checksums has."""
    (tmp_path / "file").write_bytes(content)
    there.write("written", content)
    there.upload(tmp_path / "file", "uploaded")
    assert there.read("written") == content and there.read("uploaded") == content
    assert {one.size for one in there.entries().values()} == {len(content)}


def test_one_of_many_concurrent_creates_succeeds(there):
    def create(number):
        return number if there.create("one", f"by {number}".encode()) else None

    with ThreadPoolExecutor(6) as pool:
        created = [one for one in pool.map(create, range(6)) if one is not None]
    assert len(created) == 1 and there.read("one") == f"by {created[0]}".encode()


def test_requests_that_fail_are_repeated(there, failing):
    calls = failing(OSError("refused"), TimeoutError("late"))
    there.write("one", b"content")
    assert len(calls) == 3 and there.read("one") == b"content"


def test_create_succeeds_although_its_first_answer_was_lost(there, failing):
    failing(OSError("lost"), arrives=True)
    assert there.create("one", b"mine")
    assert not there.create("one", b"other")


class StatusError(OSError):
    """The error of a client library for an HTTP status."""

    def __init__(self, code):
        super().__init__("from the server")
        self.code = code


def test_final_errors_are_raised_at_once(there, failing):
    calls = failing(StatusError(403))
    with pytest.raises(BucketError, match=f"cannot write {there.address}/a: from the server"):
        there.write("a", b"")
    assert len(calls) == 1


def test_a_request_that_keeps_failing_raises_in_the_end(there, failing, monkeypatch):
    monkeypatch.setattr(bucket, "PATIENCE_SECONDS", 0.1)
    calls = failing(*[StatusError(503)] * 99)
    with pytest.raises(BucketError, match=f"cannot write {there.address}/a: from the server"):
        there.write("a", b"")
    assert 1 < len(calls) < 99


def test_an_unknown_protocol_is_one_line(monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_ALLOW_ADDRESSES", "nowhere")
    with pytest.raises(BucketError, match="cannot reach nowhere://a: .*nowhere"):
        Bucket("nowhere://a")


def test_all_items_are_processed_before_the_first_error_is_raised():
    done = []

    def do(number):
        done.append(number)
        if number == 1:
            raise ValueError("one")

    with pytest.raises(ValueError, match="one"):
        run_in_parallel(do, range(20))
    assert sorted(done) == list(range(20))


def test_addresses_have_a_protocol():
    assert all(map(is_address, ("s3://a/b", "gs://a", "memory://x")))
    assert not any(map(is_address, ("runs/a", "/a://b", "", "a:b", Path("runs/a"))))


def test_an_address_converted_to_a_path_is_rejected():
    with pytest.raises(UserError, match="s3:/a/b was an address: give it as text"):
        is_address(Path("s3://a/b"))


ODD_ADDRESSES = ["http://h/x", "file:///etc", "S3://a/b", "memory://x", "hf://a/b", "a_b://c"]
CHAINS = ["zip://::/etc/x", "s3://a::b", "simplecache::s3://a/b", "zip://x::http://h/x"]


def test_only_the_environment_variable_allows_other_protocols(monkeypatch, assert_refused):
    monkeypatch.delenv(ALLOW_VARIABLE)
    names = {address: address.partition("://")[0] for address in ODD_ADDRESSES}
    assert_refused(
        {
            (use, address): (
                lambda use=use, address=address: use(address),
                f"set {ALLOW_VARIABLE}={name} in the environment",
            )
            for use in (is_address, Bucket)
            for address, name in names.items()
        }
    )
    monkeypatch.setenv(ALLOW_VARIABLE, ", ".join(names.values()))
    assert all(map(is_address, ODD_ADDRESSES))


def test_chained_addresses_are_rejected(monkeypatch, assert_refused):
    monkeypatch.setenv(ALLOW_VARIABLE, "zip,http,simplecache,file")
    assert_refused(
        {
            (use, address): (lambda use=use, address=address: use(address), "chains addresses")
            for use in (is_address, Bucket)
            for address in CHAINS
        }
    )


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (FileNotFoundError("x"), NotInBucketError, "there is no such file or bucket"),
        (ImportError("Install s3fs"), BucketError, "Install s3fs); `make setup EXTRAS=s3`"),
        (RuntimeError("first\nsecond"), BucketError, "first"),
        (RuntimeError(), BucketError, "RuntimeError"),
        (UserError("as it is"), UserError, "as it is"),
    ],
)
def test_errors_of_clients_become_one_line(error, kind, words):
    with pytest.raises(kind) as caught, as_bucket_errors("cannot read", "s3://a/b"):
        raise error
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(error, UserError) or "cannot read s3://a/b: " in str(caught.value)
