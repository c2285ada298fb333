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
    headers_of_get = {"Metadata-Flavor": "Google", "X-aws-ec2-metadata-token": "token"}

    def do_GET(self):
        name = "Metadata-Flavor" if "/computeMetadata/" in self.path else "X-aws-ec2-metadata-token"
        answer = self.answers.get(self.path.rpartition("/")[2])
        status = 404 if answer is None else 200
        self._send(status if self.headers.get(name) == self.headers_of_get[name] else 403, answer)

    def do_PUT(self):
        has_header = "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
        self._send(200 if has_header and self.path == "/latest/api/token" else 400, "token")

    def _send(self, status, text):
        self.send_response(status)
        self.end_headers()
        self.wfile.write((text or "").encode())

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


def wait_for(condition):
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_notice_sends_one_sigterm_and_a_cloud_that_does_not_answer_is_told_once(
    monkeypatch, caplog
):
    poll = Mock(side_effect=[ConnectionError, ConnectionError, False, True])
    monkeypatch.setitem(preemption.CLOUDS, "gce", poll)
    receive = Mock()
    before = signal.signal(signal.SIGTERM, receive)
    with preemption.watch_preemption("gce", seconds=0.01):
        wait_for(lambda: receive.called)
    signal.signal(signal.SIGTERM, before)
    assert receive.call_count == 1 and poll.call_count == 4
    silent, notice = caplog.messages
    assert silent.startswith("gce does not answer") and notice.startswith("notice by gce: ")


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
