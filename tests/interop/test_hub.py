# SPDX-License-Identifier: Apache-2.0
"""Models of the Hugging Face hub, from a server on this machine that answers as the hub does."""

import contextlib
import http.server
import json
import socket
import threading
import time

import pytest

from tests.interop.published import FIXTURES
from transformer_jax.errors import UserError
from transformer_jax.interop import hub

REVISION = "a" * 40


@contextlib.contextmanager
def served(monkeypatch, tmp_path, answer):
    """Serves `answer(path) -> (status, headers, body)` as the hub; yields the paths asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            status, headers, body = answer(self.path)
            self.send_response(status)
            for name, value in {"Content-Length": len(body), **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    use_hub(monkeypatch, tmp_path, f"http://127.0.0.1:{server.server_port}")
    yield asked
    server.shutdown()
    server.server_close()


def use_hub(monkeypatch, tmp_path, endpoint):
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    close_session()
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


def listing(names):
    """The hub's answer about a repository with files of these names."""
    siblings = [{"rfilename": name} for name in names]
    return json_answer({"id": "a/b", "sha": REVISION, "siblings": siblings})


def json_answer(content):
    return 200, {"Content-Type": "application/json"}, json.dumps(content).encode()


def refusal(status, code):
    return status, {"X-Error-Code": code, "X-Error-Message": "no"}, b"{}"


def test_pickles_alone_name_the_pull_request_that_converts_them(monkeypatch, tmp_path):
    pull_request = {
        "num": 7,
        "title": "Adding `safetensors` variant of this model",
        "author": {"name": "SFconvertbot"},
        "status": "open",
        "isPullRequest": True,
        "createdAt": "2023-01-01T00:00:00.000Z",
        "repo": {"name": "a/b", "type": "model"},
    }

    def answer(path):
        if "/discussions" in path:
            return json_answer({"discussions": [pull_request], "count": 1, "start": 0})
        return listing(["config.json", "pytorch_model.bin", "onnx/model.safetensors"])

    with served(monkeypatch, tmp_path, answer), pytest.raises(UserError) as error:
        hub.fetch_model("hf:a/b")
    assert "'pytorch_model.bin' but no model.safetensors: pickles are not read" in str(error.value)
    assert "a pull request converts it: --from=hf:a/b@refs/pr/7" in str(error.value)


def test_pickles_without_a_pull_request(monkeypatch, tmp_path):
    def answer(path):
        return refusal(500, "x") if "/discussions" in path else listing(["pytorch_model.bin"])

    with served(monkeypatch, tmp_path, answer), pytest.raises(UserError) as error:
        hub.fetch_model("hf:a/b")
    assert "/a/b/discussions (then --from=hf:a/b@refs/pr/NUMBER)" in str(error.value)


@pytest.mark.parametrize(
    "status, code, message",
    [
        (403, "GatedRepo", "hf:a/b is gated: accept its terms at http://127.0.0.1"),
        (401, "GatedRepo", "set HF_TOKEN to an access token of yours"),
        (404, "RepoNotFound", "hf:a/b is not on the hub, or is private: check the name"),
        (404, "RevisionNotFound", "hf:a/b cannot be fetched ("),
        (400, "x", "hf:a/b cannot be fetched ("),
    ],
)
def test_refusals_of_the_hub(monkeypatch, tmp_path, status, code, message):
    refused = served(monkeypatch, tmp_path, lambda path: refusal(status, code))
    with refused, pytest.raises(UserError) as error:
        hub.fetch_model("hf:a/b")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_server_that_never_answers(monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        use_hub(monkeypatch, tmp_path, f"http://127.0.0.1:{server.getsockname()[1]}")
        before = time.monotonic()
        with pytest.raises(UserError, match="hf:a/b cannot be fetched"):
            hub.fetch_model("hf:a/b")
        assert time.monotonic() - before < 10


def test_only_what_an_import_reads_is_downloaded(monkeypatch, tmp_path):
    """Not other formats of the weights, nor what is in subfolders."""
    read = {"config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"}
    others = ["model.fp16.safetensors", "pytorch_model.bin", "onnx/config.json"]

    def answer(path):
        name = path.rpartition("/")[2]
        if "/resolve/" in path:
            body = (FIXTURES / "gpt2" / name).read_bytes()
            return 200, {"ETag": '"' + name + '"', "X-Repo-Commit": REVISION}, body
        if "/tree/" in path:
            return json_answer(
                [
                    {"type": "file", "path": name, "size": 1, "oid": name}
                    for name in [*read, *others]
                ]
            )
        return listing([*read, *others])

    with served(monkeypatch, tmp_path, answer) as asked:
        folder = hub.fetch_model("hf:a/b")
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == read
    assert not any(name in path for path in asked for name in others)
