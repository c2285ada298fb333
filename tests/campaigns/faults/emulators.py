# SPDX-License-Identifier: Apache-2.0
"""S3 server (moto) and Cloud Storage emulator on loopback, with a proxy that fails requests.

    with emulator("gs") as cloud:
        cloud.faults.refused = 0.2
        subprocess.run([..., f"--workdir={cloud.address}/run"], env=os.environ | cloud.environ)

As a script, it serves one until it is stopped, and prints the variables to set:

    python tests/campaigns/faults/emulators.py s3
"""

import contextlib
import http.client
import json
import logging
import random
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, urlsplit

BUCKET = "runs"
_PER_REQUEST = ("connection", "transfer-encoding", "content-length", "date", "server")


@dataclass
class Faults:
    """Faults of requests; may be changed at any time.

    Attributes:
      refused: share of requests that are answered with 503.
      lost: share of requests that are lost, or whose answer is.
      delayed: (share of requests, seconds).
      forbidden: answer writes with 403.
    """

    refused: float = 0.0
    lost: float = 0.0
    delayed: tuple[float, float] = (0.0, 0.0)
    forbidden: bool = False
    draw: random.Random = field(default_factory=lambda: random.Random(0))


@dataclass(frozen=True)
class Emulator:
    """A running server: address of its bucket, environment of clients, faults of its proxy."""

    address: str
    environ: dict[str, str]
    faults: Faults


@contextlib.contextmanager
def emulator(kind: str) -> Iterator[Emulator]:
    """Context with an empty bucket of "s3" or "gs"."""
    faults = Faults()
    with contextlib.ExitStack() as held:
        start = {"s3": _moto, "gs": _cloud_storage}[kind]
        port = held.enter_context(_serving(start(held), faults))
        yield Emulator(f"{kind}://{BUCKET}", _environ(kind, f"http://127.0.0.1:{port}"), faults)


def _environ(kind: str, url: str) -> dict[str, str]:
    if kind == "gs":
        credentials = {"STORAGE_EMULATOR_HOST": url, "FSSPEC_GCS_TOKEN": "anon"}
        return credentials | {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
    credentials = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    return credentials | {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1"}


def _moto(held: contextlib.ExitStack) -> int:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    held.callback(server.stop)
    port = int(server.get_host_and_port()[1])
    _asked(port, "POST", "/moto-api/reset")
    _asked(port, "PUT", f"/{BUCKET}", {"Host": "s3.us-east-1.amazonaws.com"})
    return port


def _cloud_storage(held: contextlib.ExitStack) -> int:
    from gcp_storage_emulator.server import create_server

    logging.getLogger("gcp_storage_emulator").setLevel(logging.ERROR)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    server = create_server("127.0.0.1", port, in_memory=True, default_bucket=BUCKET)
    server.start()
    held.callback(server.stop)
    return port


def _asked(
    port: int, method: str, path: str, headers: Mapping[str, str] = {}, body: bytes | None = None
) -> tuple[int, list[tuple[str, str]], bytes]:
    """Sends a request; returns status, headers and content of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()


@contextlib.contextmanager
def _serving(upstream: int, faults: Faults) -> Iterator[int]:
    """Serves a proxy; yields its port."""

    fields = {"upstream": upstream, "faults": faults, "creating": threading.Lock()}
    Handler = type("Handler", (_Proxy,), fields)
    with _Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignores errors: killed clients close connections."""


class _Proxy(BaseHTTPRequestHandler):
    """Forwards requests, or fails them."""

    protocol_version = "HTTP/1.1"
    upstream: int
    faults: Faults
    creating: threading.Lock

    def _handle(self) -> None:
        body, faults = self._body(), self.faults
        chance = faults.draw.random()
        if faults.draw.random() < faults.delayed[0]:
            time.sleep(faults.delayed[1])
        if faults.forbidden and self.command != "GET" and self.command != "HEAD":
            return self._answer(403, [], b"")
        if chance < faults.refused:
            return self._answer(503, [], b"")
        if chance < faults.refused + faults.lost / 2:
            return self._hang_up()
        # The emulator has no preconditions, so writes are serialized here.
        held = self.creating if self.command in ("POST", "PUT") else contextlib.nullcontext()
        with held:
            answer = (412, [], b"{}") if self._exists(body) else self._forwarded(body)
        if chance < faults.refused + faults.lost:
            return self._hang_up()
        self._answer(*answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _handle

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self._read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self._read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _read(self, size: int) -> bytes:
        """Reads bytes of the body; like a real bucket, stores nothing of a body that was cut."""
        content = self.rfile.read(size)
        if len(content) < size:
            raise ConnectionError("the client closed the connection inside a body")
        return content

    def _exists(self, body: bytes) -> bool:
        """Returns True if a Cloud Storage write requires a new object, but it exists."""
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if query.get("ifGenerationMatch") != ["0"]:
            return False
        in_body = re.search(r'"name": *("(?:[^"\\]|\\.)*")', body.decode("latin1"))
        name = query["name"][0] if "name" in query else json.loads(in_body[1])
        place = url.path.removeprefix("/upload").rstrip("/")
        return _asked(self.upstream, "GET", f"{place}/{quote(name, safe='')}")[0] == 200

    def _forwarded(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        headers = {n: v for n, v in self.headers.items() if n.lower() not in _PER_REQUEST}
        headers["Content-Length"] = str(len(body))
        return _asked(self.upstream, self.command, self.path, headers, body)

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response(status)
        told = {name.lower(): value for name, value in headers}
        for name, value in headers:
            if name.lower() not in _PER_REQUEST:
                self.send_header(name, value)
        # A HEAD has the length of the GET's body.
        length = told.get("content-length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


if __name__ == "__main__":
    with emulator(sys.argv[1]) as running:
        for name, value in running.environ.items():
            print(f"export {name}={value}")
        print(f"# {running.address}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
