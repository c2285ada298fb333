# SPDX-License-Identifier: Apache-2.0
"""Tests that the emulators behave like real buckets where campaigns rely on it."""

import contextlib
import socket
from urllib.parse import urlsplit

from tests.campaigns.faults.emulators import emulator
from transformer_jax.buckets.bucket import Bucket


def test_an_upload_that_was_cut_stores_nothing(monkeypatch):
    with emulator("s3") as cloud:
        for name, value in cloud.environ.items():
            monkeypatch.setenv(name, value)
        bucket = Bucket(cloud.address)
        bucket.write("whole", b"12345678")
        server = urlsplit(cloud.environ["AWS_ENDPOINT_URL"])
        head = "PUT /runs/{} HTTP/1.1\r\nHost: s3.us-east-1.amazonaws.com\r\n{}\r\n\r\n"
        for name, length, sent in [
            ("cut", "Content-Length: 8", b"123"),
            ("cut_chunk", "Transfer-Encoding: chunked", b"8\r\n123"),
        ]:
            with socket.create_connection((server.hostname, server.port)) as client:
                client.sendall(head.format(name, length).encode() + sent)
                client.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionError):
                    assert client.recv(1) == b""
        assert set(bucket.entries()) == {"whole"}
