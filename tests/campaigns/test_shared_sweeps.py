# SPDX-License-Identifier: Apache-2.0
"""Several processes work on one sweep or search, and some of them are killed: rows and trials are
claimed, taken over, and trained once."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

import transformer_jax as tj
from tests.campaigns.faults.emulators import emulator
from transformer_jax.buckets import lease, mirror
from transformer_jax.buckets.bucket import Bucket
from transformer_jax.lab.sweeps import shared_folder
from transformer_jax.lab.sweeps import sweep as sweeps
from transformer_jax.lab.sweeps.results import encoded_result
from transformer_jax.lab.sweeps.tables import Row
from transformer_jax.runtime.files import write_atomic

ROWS = {f"row {number}": {"optimizer.learning_rate": 0.001 * (number + 1)} for number in range(6)}
SWEEP = tj.Sweep("quickstart", ROWS, seeds=1, metrics=["loss"])


def work(workdir, log, seconds, environ):
    """A worker, whose training takes some time, can be killed, and goes on where it was."""

    def train_rows(sweep, rows, at_once, modules):
        ((folder, spec),) = rows.items()
        if (folder / "result.json").exists():
            return
        steps = folder / "steps"
        for _ in range(len(steps.read_bytes()) if steps.exists() else 0, 5):
            time.sleep(seconds)
            with steps.open("a") as file:
                file.write(".")
        with Path(log).open("a") as file:
            file.write(f"{spec.name}\n")
        metrics = {"loss": [spec.settings.optimizer.learning_rate]}
        row = Row(spec.name, metrics, parameters=1, tokens_per_s=1.0, seconds=1.0)
        write_atomic(folder / "result.json", encoded_result(row, sweep.asked(spec.settings)))

    os.environ |= environ
    lease.STALE_SECONDS, lease.RENEW_SECONDS, mirror.SCAN_SECONDS = 1.0, 0.2, 0.1
    sweeps.train_rows = train_rows
    sweeps.check_row = lambda *_: None
    shared_folder._POLL_SECONDS = 0.05
    sweeps.run_sweep(SWEEP, workdir, at_once=1, progress=False)


FORK = multiprocessing.get_context("forkserver")  # it has no threads
FORK.set_forkserver_preload([f"transformer_jax.lab.sweeps.{name}" for name in ("sweep", "study")])


def run_workers(workdir, log, environs, seconds=0.02, kills=0):
    """Runs a worker with each environment; kills some after a row has begun."""
    started = [FORK.Process(target=work, args=(workdir, log, seconds, one)) for one in environs]
    for worker in started:
        worker.start()
    caches = [Path(one["XDG_CACHE_HOME"]) for one in environs if one]
    while kills and not any(any(place.rglob("steps")) for place in caches or [workdir]):
        time.sleep(0.01)
    killed = random.Random(0).sample(started, kills)
    for worker in killed:
        os.kill(worker.pid, signal.SIGKILL)
    for worker in started:
        worker.join(300)
    left = [worker.exitcode for worker in started if worker not in killed]
    assert left == [0] * (len(environs) - kills)


def assert_each_is_trained_once(folder, table):
    """Also: the table is that of one worker."""
    assert sorted((folder / "log").read_text().splitlines()) == sorted(ROWS)
    run_workers(folder / "alone", folder / "log_2", [{}], seconds=0)
    assert table == (folder / "alone" / "table.csv").read_text()


def test_rows_of_killed_workers_are_taken_over_and_each_is_trained_once(tmp_path):
    run_workers(tmp_path / "sweep", tmp_path / "log", [{}] * 8, kills=3)
    table = (tmp_path / "sweep" / "table.csv").read_text()
    assert_each_is_trained_once(tmp_path, table)
    assert table.count("\n") == 1 + len(ROWS)


def test_rows_in_a_bucket_are_taken_over_and_each_is_trained_once(tmp_path, monkeypatch):
    """Each worker is a machine: it has its own copies."""
    with emulator("s3") as cloud:
        environs = [cloud.environ | {"XDG_CACHE_HOME": str(tmp_path / str(n))} for n in range(3)]
        address = f"{cloud.address}/sweep"
        run_workers(address, tmp_path / "log", environs, seconds=0.3, kills=1)
        for name, value in cloud.environ.items():
            monkeypatch.setenv(name, value)
        table = Bucket(address).read("table.csv").decode()
    assert_each_is_trained_once(tmp_path, table)


def test_trials_of_killed_workers_are_taken_over(tmp_path):
    test_search = pytest.importorskip("tests.lab.sweeps.test_search")
    arguments = (tmp_path, test_search.SEARCH, 0.05)
    workers = [FORK.Process(target=test_search.work, args=arguments) for _ in range(5)]
    for worker in workers:
        worker.start()
    while len(list(tmp_path.glob("*/steps"))) < 4:
        time.sleep(0.01)
    for worker in workers[:3]:
        os.kill(worker.pid, signal.SIGKILL)
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [-9] * 3 + [0] * 2
    trials = test_search.trials_of(tmp_path)
    assert len(trials) == 12 and all(trial.state.is_finished() for trial in trials)
    for trial in trials:  # no step was trained twice
        reached = 9 if trial.state.name == "COMPLETE" else max(trial.intermediate_values)
        assert (tmp_path / f"trial_{trial.number}" / "steps").stat().st_size == reached
