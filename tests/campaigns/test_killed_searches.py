# SPDX-License-Identifier: Apache-2.0
"""Several processes work on one search, and some of them are killed: trials are taken over."""

import multiprocessing
import os
import signal
import time

from tests.lab.sweeps.test_search import SEARCH, decisions, loss, work
from transformer_jax.lab.sweeps.search import replay
from transformer_jax.lab.sweeps.shared_folder import SweepFolder


def test_trials_of_killed_workers_are_taken_over_and_the_log_is_replayed(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer_jax.lab.sweeps.search._POLL_SECONDS", 0.05)
    fork = multiprocessing.get_context("forkserver")
    fork.set_forkserver_preload(["transformer_jax.lab.sweeps.search"])
    workers = [fork.Process(target=work, args=(tmp_path / "sweep", 0.05)) for _ in range(5)]
    for worker in workers:
        worker.start()
    while len(list((tmp_path / "sweep").glob("*/steps"))) < 4:
        time.sleep(0.01)
    for worker in workers[:3]:
        os.kill(worker.pid, signal.SIGKILL)
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [-9] * 3 + [0] * 2
    entries = decisions(tmp_path / "sweep")
    told = [(entry["tell"], entry["rung"]) for entry in entries if "tell" in entry]
    assert len(set(told)) == len(told)
    *_, (_, state) = replay(SweepFolder(tmp_path / "sweep", writes=False))
    assert len(state.trials) == 12 and not state.open
    for number, trial in enumerate(state.trials):  # no step was trained twice
        steps = tmp_path / "sweep" / f"trial_{number}" / "steps"
        assert steps.stat().st_size == SEARCH.rungs[len(trial.scores) - 1]
    best = min(range(12), key=lambda number: loss(state.trials[number].values, 9))
    assert state.ranking()[0] == best
