# SPDX-License-Identifier: Apache-2.0
"""Several processes work on one search, and some of them are killed: trials are taken over."""

import multiprocessing
import os
import signal
import time

from tests.lab.sweeps.test_search import SEARCH, trials_of, work


def test_trials_of_killed_workers_are_taken_over(tmp_path):
    fork = multiprocessing.get_context("forkserver")
    fork.set_forkserver_preload(["transformer_jax.lab.sweeps.study"])
    workdir = tmp_path / "sweep"
    workers = [fork.Process(target=work, args=(workdir, SEARCH, 0.05)) for _ in range(5)]
    for worker in workers:
        worker.start()
    while len(list(workdir.glob("*/steps"))) < 4:
        time.sleep(0.01)
    for worker in workers[:3]:
        os.kill(worker.pid, signal.SIGKILL)
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [-9] * 3 + [0] * 2
    trials = trials_of(workdir)
    assert len(trials) == 12 and all(trial.state.is_finished() for trial in trials)
    for trial in trials:  # no step was trained twice
        reached = 9 if trial.state.name == "COMPLETE" else max(trial.intermediate_values)
        assert (workdir / f"trial_{trial.number}" / "steps").stat().st_size == reached
