# SPDX-License-Identifier: Apache-2.0
"""Experiment trackers: what they get, and that training never waits for them or fails with them."""

import json
import sqlite3
import sys
import threading
from importlib.machinery import ModuleSpec
from unittest.mock import Mock, call

import pytest

from tests.conftest import records_of
from tests.refusals import assert_refused
from transformer_jax.logs import trackers
from transformer_jax.logs.run_log import LoggingConfig, RunLog
from transformer_jax.logs.trackers import TRACKERS, Tracker


@pytest.fixture
def tracked_by(with_entries):
    """`tracked_by(**methods)`: config of a run that only a tracker with these methods tracks."""

    def register(**methods):
        own = type("Own", (Tracker,), {"log": Mock()} | methods)
        with_entries(TRACKERS, {"own": own})
        return LoggingConfig(trackers="own")

    return register


def write_run(workdir, config, *, start=0, steps=(5,)):
    (workdir / "config.json").write_text('{"seed": 3, "model": {"d_model": 8}}')
    with RunLog([workdir], start_step=start, config=config) as log:
        for step in steps:
            log.record(step, "train", {"loss": 1 / step, "name": "text", "big@": 2})


def test_a_tracker_gets_all_numbers_and_the_config(tmp_path, tracked_by):
    got = []

    def log(self, step, metrics, time):
        got.append((self.run.config["model"], self.run.start_step, step, metrics, time))

    config = tracked_by(log=log, close=lambda self: got.append("closed"))
    write_run(tmp_path, config, start=4, steps=(5, 10))
    times = [record["time"] for record in records_of(tmp_path)]
    assert got == [
        ({"d_model": 8}, 4, 5, {"train/loss": 0.2, "train/big@": 2}, times[0]),
        ({"d_model": 8}, 4, 10, {"train/loss": 0.1, "train/big@": 2}, times[1]),
        "closed",
    ]
    assert not (tmp_path / "tensorboard").exists()


def test_training_does_not_wait_for_a_tracker(tmp_path, tracked_by, monkeypatch, caplog):
    may_begin = threading.Event()
    log = Mock()
    monkeypatch.setattr(trackers, "_MOST_WAITING", 3)
    monkeypatch.setattr(trackers, "_SECONDS_TO_CLOSE", 600)
    config = tracked_by(__init__=lambda self, run: may_begin.wait(600) and None, log=log)
    with RunLog([tmp_path], start_step=0, config=config) as run_log:
        for step in range(1, 9):  # would hang here
            run_log.record(step, "train", {"loss": 1.0})
        may_begin.set()  # a full queue is no reason to wait for the deadline
    assert [call.args[0] for call in log.call_args_list][:3] == [1, 2, 3]
    assert len(records_of(tmp_path)) == 8
    words = "tracker own is 3 records behind and misses the next ones; training continues"
    assert caplog.messages == [words]


@pytest.mark.parametrize("part", ["__init__", "log", "close"])
def test_a_failure_is_told_once_and_stops_nothing(tmp_path, tracked_by, caplog, part):
    failing = Mock(side_effect=ConnectionError("no route\nto host"))
    write_run(tmp_path, tracked_by(**{part: failing}), steps=(1, 2, 3))
    (message,) = caplog.messages
    assert "ConnectionError: no route; training continues" in message
    assert len(records_of(tmp_path)) == 3


def test_a_lost_record_does_not_end_a_tracker(tmp_path, tracked_by, caplog):
    log = Mock(side_effect=[ConnectionError, None, None])
    write_run(tmp_path, tracked_by(log=log), steps=(1, 2, 3))
    assert log.call_count == 3 and "tracker own lost a record" in caplog.text


def test_a_tracker_that_does_not_end_is_left(tmp_path, tracked_by, monkeypatch, caplog):
    end = threading.Event()
    monkeypatch.setattr(trackers, "_SECONDS_TO_CLOSE", 0.05)
    write_run(tmp_path, tracked_by(close=lambda self: end.wait(600)))
    end.set()
    assert "tracker own did not end within 0 s" in caplog.text


def test_a_tracker_without_its_package_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = LoggingConfig(trackers="wandb", project="project")
    refused = "trackers: the package wandb is not installed: `make"
    assert_refused({refused: lambda: RunLog([tmp_path], start_step=0, config=config)})


def test_a_former_id_is_kept(tmp_path):
    run = trackers.TrackedRun(tmp_path, 0, "project", None)
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "run_id").write_text("abc")
    assert run.stored_id("wandb", lambda: "new") == "abc"
    assert run.stored_id("own", lambda: "first") == "first"
    assert run.stored_id("own", lambda: "second") == "first"


def write_and_resume(workdir, trackers, steps=([5], [10])):
    config = LoggingConfig(trackers=trackers, project="study")
    write_run(workdir, config, steps=steps[0])
    write_run(workdir, config, start=5, steps=steps[1])


def test_weights_and_biases_gets_repeated_steps(tmp_path, monkeypatch):
    """wandb drops a record whose own step is not above its last one."""
    run = Mock()
    wandb = Mock(init=lambda **_: run, __spec__=ModuleSpec("wandb", None))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    write_and_resume(tmp_path, "wandb", ([5, 10], [10]))
    assert [call.args[0]["step"] for call in run.log.call_args_list] == [5, 10, 10]
    assert all(call.kwargs == {} for call in run.log.call_args_list)
    assert call("*", step_metric="step") in run.define_metric.call_args_list


# --- The packages themselves, offline, where they are installed ---


def test_weights_and_biases_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    write_and_resume(tmp_path, "wandb")
    run_id = (tmp_path / "trackers" / "wandb").read_text()
    runs = [path for path in (tmp_path / "wandb").glob("offline-run-*") if path.is_dir()]
    assert runs and all(path.name.endswith(run_id) for path in runs)  # two if seconds differ


def test_mlflow_offline(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    write_and_resume(tmp_path, "tensorboard,mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/runs.db")
    experiment = client.get_experiment_by_name("study").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.info.run_name == tmp_path.name and run.info.status == "FINISHED"
    assert run.data.params == {"seed": "3", "model.d_model": "8"}
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(5, 0.2), (10, 0.1)]
    assert run.data.metrics["train/big_"] == 2


def test_trackio_offline(tmp_path, monkeypatch, capsys):
    pytest.importorskip("trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    write_and_resume(tmp_path, "trackio")
    (path,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(path) as database:
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
    name = (tmp_path / "trackers" / "trackio").read_text()
    assert [row[:2] for row in rows] == [(name, 5), (name, 10)]
    assert json.loads(rows[1][2])["train/loss"] == 0.1
    assert capsys.readouterr().out == ""
