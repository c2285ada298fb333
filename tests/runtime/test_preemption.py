# SPDX-License-Identifier: Apache-2.0
"""Preemption notices of local metadata servers, and of a file."""

import http.server
import signal
import threading
import time

import pytest

import transformer_jax as tj
from transformer_jax.errors import Stopped
from transformer_jax.runtime import preemption


class Metadata(http.server.BaseHTTPRequestHandler):
    """Imitates the metadata servers of Google and Amazon."""

    answers: dict

    def do_GET(self):
        google = self.path.startswith("/computeMetadata/")
        has_header = (
            self.headers.get("Metadata-Flavor") == "Google"
            if google
            else (self.headers.get("X-aws-ec2-metadata-token") == "token")
        )
        if not has_header:
            return self._send(403, "no header")
        answer = self.answers.get(self.path.rpartition("/")[2])
        return self._send(200, answer) if answer is not None else self._send(404, "")

    def do_PUT(self):
        valid = self.path == "/latest/api/token" and "X-aws-ec2-metadata-token-ttl-seconds"
        self._send(200, "token") if valid in self.headers else self._send(400, "")

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


@pytest.fixture(autouse=True)
def short_polls(monkeypatch):
    monkeypatch.setattr(preemption, "POLL_SECONDS", 0.01)


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
    came = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    yield came
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def polls(monkeypatch):
    """Grows by one with each poll of Google's server."""
    polls = []
    poll = lambda: polls.append("gce") or preemption.gce()  # noqa: E731
    monkeypatch.setitem(preemption.CLOUDS, "gce", poll)
    return polls


def wait_for(condition):
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_notice_sends_one_sigterm(metadata, signals, polls):
    with preemption.watch_preemption("gce"):
        wait_for(lambda: len(polls) > 2)
        assert not signals
        metadata["preempted"] = "TRUE"
        wait_for(lambda: signals)
    assert signals == [signal.SIGTERM]


def test_a_cloud_that_does_not_answer_is_logged_once(monkeypatch, signals, polls, caplog):
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    with preemption.watch_preemption("gce"):
        wait_for(lambda: len(polls) > 3)
    assert not signals
    assert [r.message for r in caplog.records if "gce does not answer" in r.message] == [
        caplog.records[0].message
    ]


def test_a_run_saves_and_stops_after_a_notice(
    tiny_config, tiny_language_model, tmp_path, monkeypatch
):
    notice = tmp_path / "notice"
    changes = tiny_language_model | {
        "parallel.preemption_notice": str(notice),
        "train.num_steps": 10**6,
        "optimizer.decay_steps": 10**6,
        "eval.every_steps": 10**6,
        "checkpoint.every_steps": 10**6,
    }
    workdir = tmp_path / "run"

    metrics = workdir / "metrics.jsonl"

    def give():
        wait_for(lambda: metrics.exists() and metrics.read_text())
        notice.touch()

    threading.Thread(target=give, daemon=True).start()
    with pytest.raises(Stopped, match="stopped by SIGTERM at step"):
        tj.train(tiny_config(changes), workdir)
    assert tj.load(workdir).step > 0
