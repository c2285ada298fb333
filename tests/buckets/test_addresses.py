from pathlib import Path

import pytest

from transformer_jax.buckets.addresses import ALLOW, BucketError, Missing, is_address, telling
from transformer_jax.buckets.bucket import Bucket
from transformer_jax.errors import UserError


def test_addresses_have_a_protocol():
    assert all(map(is_address, ("s3://a/b", "gs://a", "memory://x")))
    assert not any(map(is_address, ("runs/a", "/a://b", "", "a:b", Path("runs/a"))))


def test_an_address_that_was_made_a_path_is_not_taken_for_a_folder():
    with pytest.raises(UserError, match="s3:/a/b was an address: give it as text"):
        is_address(Path("s3://a/b"))


ODD_ADDRESSES = ["http://h/x", "file:///etc", "S3://a/b", "memory://x", "hf://a/b", "a_b://c"]
CHAINS = ["zip://::/etc/x", "s3://a::b", "simplecache::s3://a/b", "zip://x::http://h/x"]


@pytest.mark.parametrize("address", ODD_ADDRESSES)
def test_other_protocols_are_allowed_by_the_user_alone(address, monkeypatch):
    monkeypatch.delenv(ALLOW)
    protocol = address.partition("://")[0]
    for use in (is_address, Bucket):
        with pytest.raises(UserError, match=f"set {ALLOW}={protocol} in the environment"):
            use(address)
    monkeypatch.setenv(ALLOW, f"other, {protocol}")
    assert is_address(address)


@pytest.mark.parametrize("address", CHAINS)
def test_chains_are_never_addresses(address, monkeypatch):
    monkeypatch.setenv(ALLOW, "zip,http,simplecache,file")
    for use in (is_address, Bucket):
        with pytest.raises(UserError, match="chains addresses"):
            use(address)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (FileNotFoundError("x"), Missing, "there is no such file or bucket"),
        (ImportError("Install s3fs"), BucketError, "s3:// needs a package of its own (Install"),
        (RuntimeError("first\nsecond"), BucketError, "first"),
        (RuntimeError(), BucketError, "RuntimeError()"),
        (UserError("as it is"), UserError, "as it is"),
    ],
)
def test_errors_of_clients_become_one_line(error, kind, words):
    with pytest.raises(kind) as caught, telling("cannot read", "s3://a/b"):
        raise error
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(error, UserError) or "cannot read s3://a/b: " in str(caught.value)
