# SPDX-License-Identifier: Apache-2.0
"""Preemption notices of local metadata servers, and of a file."""

import http.server
import signal
import threading
import time
from unittest.mock import Mock

import pytest

import transformer_jax as tj
from transformer_jax.errors import Stopped
from transformer_jax.runtime import preemption


class Metadata(http.server.BaseHTTPRequestHandler):
    """Imitates the metadata servers of Google and Amazon."""

    answers: dict

    def do_GET(self):
        if self.path.startswith("/computeMetadata/"):
            has_header = self.headers.get("Metadata-Flavor") == "Google"
        else:
            has_header = self.headers.get("X-aws-ec2-metadata-token") == "token"
        answer = self.answers.get(self.path.rpartition("/")[2])
        if not has_header:
            self._send(403, "no header")
        elif answer is None:
            self._send(404, "")
        else:
            self._send(200, answer)

    def do_PUT(self):
        has_header = "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
        is_valid = has_header and self.path == "/latest/api/token"
        self._send(*((200, "token") if is_valid else (400, "")))

    def _send(self, status, text):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def metadata(monkeypatch):
    """The servers' answers, by the last part of the path."""
    answers = {"preempted": "FALSE", "maintenance-event": "NONE"}
    handler = type("Handler", (Metadata,), {"answers": answers})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = f"127.0.0.1:{server.server_port}"
    monkeypatch.setenv("GCE_METADATA_HOST", address)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{address}/")
    yield answers
    server.shutdown()
    server.server_close()


def test_notices_of_clouds_are_recognized(metadata):
    assert not preemption.gce() and not preemption.aws()
    metadata["instance-action"] = '{"action": "terminate", "time": "2026-01-01T00:00:00Z"}'
    assert preemption.aws()
    metadata["preempted"] = "TRUE"
    assert preemption.gce()
    metadata |= {"preempted": "FALSE", "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"}
    assert preemption.gce()


@pytest.fixture
def signals(monkeypatch):
    """The SIGTERMs that this process received."""
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    yield received
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def polls(monkeypatch):
    """Mock that polls Google's server."""
    poll = Mock(side_effect=preemption.gce)
    monkeypatch.setitem(preemption.CLOUDS, "gce", poll)
    return poll


def wait_for(condition):
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_notice_sends_one_sigterm(metadata, signals, polls):
    with preemption.watch_preemption("gce", seconds=0.01):
        wait_for(lambda: polls.call_count > 2)
        assert not signals
        metadata["preempted"] = "TRUE"
        wait_for(lambda: signals)
    assert signals == [signal.SIGTERM]


def test_a_cloud_that_does_not_answer_is_logged_once(monkeypatch, signals, polls, caplog):
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    with preemption.watch_preemption("gce", seconds=0.01):
        wait_for(lambda: polls.call_count > 3)
    assert not signals
    assert caplog.text.count("gce does not answer") == len(caplog.records) == 1


def test_a_run_saves_and_stops_after_a_notice(
    tiny_config, tiny_language_model, tmp_path, monkeypatch
):
    monkeypatch.setattr(preemption, "POLL_SECONDS", 0.05)
    notice = tmp_path / "notice"
    every = ("train.num_steps", "optimizer.decay_steps", "eval.every_steps")
    never = dict.fromkeys((*every, "checkpoint.every_steps"), 10**6)
    changes = tiny_language_model | never | {"parallel.preemption_notice": str(notice)}
    metrics = tmp_path / "run" / "metrics.jsonl"

    def give():
        wait_for(lambda: metrics.exists() and metrics.read_text())
        notice.touch()

    threading.Thread(target=give, daemon=True).start()
    with pytest.raises(Stopped, match="stopped by SIGTERM at step"):
        tj.train(tiny_config(changes), tmp_path / "run")
    assert tj.load(tmp_path / "run").step > 0
