# SPDX-License-Identifier: Apache-2.0
"""Several processes work on one sweep, and some of them are killed: rows are claimed, taken over,
and trained once."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

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


def run_workers(workdir, log, environs, seconds=0.02, kills=0):
    """Runs a worker with each environment; kills some after a row has begun."""
    FORK.set_forkserver_preload(["transformer_jax.lab.sweeps.sweep"])
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


def test_rows_of_killed_workers_are_taken_over_and_each_is_trained_once(tmp_path):
    log = tmp_path / "log"
    run_workers(tmp_path / "sweep", log, [{}] * 8, kills=3)
    assert sorted(log.read_text().splitlines()) == sorted(ROWS)
    run_workers(tmp_path / "alone", tmp_path / "log_2", [{}], seconds=0)
    tables = [(tmp_path / name / "table.csv").read_text() for name in ("sweep", "alone")]
    assert tables[0] == tables[1] and tables[0].count("\n") == 1 + len(ROWS)


def test_rows_in_a_bucket_are_taken_over_and_each_is_trained_once(tmp_path, monkeypatch):
    """Each worker is a machine: it has its own copies."""
    log = tmp_path / "log"
    with emulator("s3") as cloud:
        environs = [cloud.environ | {"XDG_CACHE_HOME": str(tmp_path / str(n))} for n in range(3)]
        address = f"{cloud.address}/sweep"
        run_workers(address, log, environs, seconds=0.3, kills=1)
        for name, value in cloud.environ.items():
            monkeypatch.setenv(name, value)
        table = Bucket(address).read("table.csv").decode()
    assert sorted(log.read_text().splitlines()) == sorted(ROWS)
    run_workers(tmp_path / "alone", tmp_path / "log_2", [{}], seconds=0)
    assert table == (tmp_path / "alone" / "table.csv").read_text()
