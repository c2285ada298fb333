# SPDX-License-Identifier: Apache-2.0
"""Preemption notices of metadata servers, and of a file."""

import io
import signal
import threading
import time
import urllib.error
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import transformer_jax as tj
from transformer_jax.errors import Stopped
from transformer_jax.runtime import preemption


@pytest.fixture
def metadata(monkeypatch):
    """Answers of the metadata servers of Google and Amazon, by the last part of the path."""
    answers = {"preempted": "FALSE", "maintenance-event": "NONE"}

    def open_url(request, timeout):
        url = request.full_url
        name = url.rpartition("/")[2]
        if request.method == "PUT":
            assert url == "http://aws/latest/api/token"
            assert request.has_header("X-aws-ec2-metadata-token-ttl-seconds")
            return io.BytesIO(b"token")
        if url.startswith("http://google/computeMetadata/v1/instance/"):
            assert request.get_header("Metadata-flavor") == "Google"
        else:
            assert url.startswith("http://aws/latest/meta-data/spot/")
            assert request.get_header("X-aws-ec2-metadata-token") == "token"
        if name not in answers:
            raise urllib.error.HTTPError(url, 404, "", {}, None)
        return io.BytesIO(answers[name].encode())

    monkeypatch.setattr(preemption, "_direct", SimpleNamespace(open=open_url))
    monkeypatch.setenv("GCE_METADATA_HOST", "google")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://aws/")
    return answers


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


def wait_for(condition):
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_notice_sends_one_sigterm_and_a_cloud_that_does_not_answer_is_told_once(
    monkeypatch, caplog
):
    poll = Mock(side_effect=[ConnectionError, ConnectionError, False, *[True] * 9])
    monkeypatch.setitem(preemption.CLOUDS, "gce", poll)
    receive = Mock()
    before = signal.signal(signal.SIGTERM, receive)
    with preemption.watch_preemption("gce"):
        wait_for(lambda: receive.called)
        time.sleep(0.05)
    signal.signal(signal.SIGTERM, before)
    assert receive.call_count == 1 and poll.call_count == 4
    silent, notice = caplog.messages
    assert silent.startswith("gce does not answer") and notice.startswith("notice by gce: ")


def test_a_run_saves_and_stops_after_a_notice(
    tiny_config, tiny_language_model, tmp_path, monkeypatch
):
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
