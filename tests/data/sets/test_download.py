# SPDX-License-Identifier: Apache-2.0
"""Downloads and folders of public sets."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.refusals import assert_refused
from transformer_jax.data.sets.download import PublicSet, RemoteFile, download
from transformer_jax.data.sets.public import MULTI30K, SCAN, TINY_SHAKESPEARE, WIKITEXT2
from transformer_jax.errors import UserError

CONTENT = bytes(range(256)) * 1000


class _Handler(BaseHTTPRequestHandler):
    """Serves the server's `body` at /file.gz, with `announced` as its Content-Length."""

    def do_GET(self):
        self.server.requests += 1
        if self.path != "/file.gz":
            self.send_error(404)
            return
        self.send_response(200)
        if self.server.announced is not None:
            self.send_header("Content-Length", str(self.server.announced))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.body, server.announced, server.requests = CONTENT, None, 0
    server.url = f"http://127.0.0.1:{server.server_port}/file.gz"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def remote_file(url: str) -> RemoteFile:
    return RemoteFile(url, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def test_downloads_into_a_private_folder(server, tmp_path):
    folder = tmp_path / "cache" / "set"
    path = folder / "file.gz"
    download(remote_file(server.url), path)
    assert path.read_bytes() == CONTENT
    assert [p.name for p in folder.iterdir()] == ["file.gz"]
    for made in (folder, folder.parent):
        assert made.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "body, announced, complaint",
    [
        (CONTENT[:-1] + b"!", None, "SHA-256"),
        (CONTENT[:1000], None, "broke off after 1000 of 256000 bytes"),
        (CONTENT[:1000], len(CONTENT), "broke off after 1000 of 256000 bytes"),
        (b"", None, "broke off after 0 of"),
    ],
    ids=["wrong hash", "short", "truncated", "empty"],
)
def test_wrong_content_is_not_stored(server, tmp_path, body, announced, complaint):
    server.body, server.announced = body, announced
    with pytest.raises(UserError, match=complaint) as error:
        download(remote_file(server.url), tmp_path / "file.gz")
    assert server.url in str(error.value)
    assert "data.dir" in str(error.value) and "TRANSFORMER_JAX_DATA" in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_failed_download_keeps_the_existing_file(server, tmp_path):
    (tmp_path / "file.gz").write_bytes(b"before")
    server.body = b"wrong"
    with pytest.raises(UserError):
        download(remote_file(server.url), tmp_path / "file.gz")
    assert (tmp_path / "file.gz").read_bytes() == b"before"


def test_what_cannot_be_downloaded_is_refused(server, public_set, tmp_path):
    (tmp_path / "taken").write_text("a file")
    remote = remote_file(server.url)
    other = remote_file(server.url.replace("file.gz", "other.gz"))
    nowhere = remote_file("http://127.0.0.1:9/file.gz")
    assert_refused(
        {
            "404": lambda: download(other, tmp_path / "file"),
            "set data.dir": lambda: download(nowhere, tmp_path / "file"),
            "taken": lambda: download(remote, tmp_path / "taken" / "file"),
            f"{tmp_path} has neither file nor file.gz: set data.dir": lambda: public_set.path(
                "file", str(tmp_path)
            ),
        }
    )
    assert server.requests == 1


@pytest.fixture
def public_set(server, monkeypatch, tmp_path):
    monkeypatch.setenv("TRANSFORMER_JAX_DATA", str(tmp_path / "data"))
    return PublicSet("some_set", {"file": remote_file(server.url)})


def test_a_missing_file_is_downloaded_once(public_set, server, tmp_path):
    path = public_set.path("file")
    assert path == str(tmp_path / "data" / "some_set" / "file.gz")
    assert public_set.path("file") == path
    assert server.requests == 1


@pytest.mark.parametrize("cache_home", ["elsewhere", None])
def test_the_default_data_root_is_the_user_cache(public_set, monkeypatch, tmp_path, cache_home):
    monkeypatch.delenv("TRANSFORMER_JAX_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if cache_home:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache_home))
    cache = tmp_path / (cache_home or ".cache")
    assert public_set.path("file") == str(cache / "transformer_jax/data/some_set/file.gz")


@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_a_file_in_the_users_folder_is_not_verified(public_set, server, tmp_path, name):
    (tmp_path / name).write_bytes(b"the user's own")
    assert public_set.path("file", str(tmp_path)) == str(tmp_path / name)
    assert server.requests == 0


def test_all_downloads_are_pinned():
    sets = (SCAN, MULTI30K, TINY_SHAKESPEARE, WIKITEXT2)
    assert [len(public_set.files) for public_set in sets] == [6, 9, 1, 3]
    for name, remote in (file for public_set in sets for file in public_set.files.items()):
        last = remote.url.rpartition("/")[2].removesuffix(".gz")
        assert name in (last, f"wiki.{last.removesuffix('.txt')}.tokens")
        assert len(bytes.fromhex(remote.sha256)) == 32
