# SPDX-License-Identifier: Apache-2.0
"""A process of a job that dies or hangs ends the others."""

import shutil
import signal
import time

import pytest

import transformer_jax as tj
from tests.parallel.jobs import job, records, training, wait_for_step


@pytest.fixture
def endless(trained_workdir, tmp_path, tiny):
    """Workdir of a run of one process at step 30, and the command that continues it for long."""
    workdir = tmp_path / "run"
    shutil.copytree(trained_workdir, workdir)
    overrides = tiny | {
        "train.num_steps": 100_000,
        "optimizer.decay_steps": 100_000,
        "checkpoint.every_steps": 10,
        "eval.every_steps": 100_000,
        "parallel.heartbeat_seconds": 10,
    }
    return workdir, training(workdir, overrides)


@pytest.mark.parametrize("how, lost", [(signal.SIGKILL, 0), (signal.SIGSTOP, 1)])
def test_a_lost_or_hanging_process_ends_the_others(endless, how, lost):
    workdir, command = endless
    with job(*command) as processes:
        wait_for_step(workdir, 45, processes)
        processes[lost].send_signal(how)
        reached, start = max(records(workdir)), time.monotonic()
        _, errors = processes[1 - lost].communicate(timeout=60)
        assert time.monotonic() - start < 30
        assert processes[1 - lost].returncode not in (0, 2)
    assert "continues from step 30" in errors or lost == 0
    assert reached - tj.load(workdir).step <= 10 + 5  # a save, and a record


WAITS = """
import sys
from transformer_jax.parallel import hosts
from transformer_jax.parallel.job import connect
coordinator, count, number = (word.split("=")[1] for word in sys.argv[2:])
connect(coordinator, int(count), int(number), heartbeat_seconds=100)
print("connected", file=sys.stderr, flush=True)
hosts.gather(1) if number == "0" else sys.stdin.read()  # the other one never comes
"""


def test_sigterm_ends_processes_that_wait_for_another():
    with job(program=("-c", WAITS)) as processes:
        for process in processes:
            while "connected" not in process.stderr.readline():
                assert process.poll() is None
        processes[1].send_signal(signal.SIGTERM)
        errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [75, 75], errors
