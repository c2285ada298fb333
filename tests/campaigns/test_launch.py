# SPDX-License-Identifier: Apache-2.0
"""A launched job continues on the hosts that are left."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.parallel.jobs import environment, free_ports, records, training, wait_for_step
from transformer_jax.errors import RESUMABLE

LAUNCH = Path(__file__).parents[2] / "experiments" / "launch"
SSH = """#!/bin/bash
while [[ $1 == -o ]]; do shift 2; done
if [ -e {lost}/$1 ]; then exit 255; fi
exec bash -c "$2"
"""
"""Stands for ssh: every host is this machine, unless it is lost."""


@pytest.fixture
def launched(tmp_path, tiny_language_model):
    """`launched(*hosts)`: hosts.sh at work on a long run; the workdir; and the folder in which a
    file by the name of a host makes it answer no longer. Each has a process group of its own."""
    lost, started = tmp_path / "lost", []
    lost.mkdir()
    (tmp_path / "ssh").write_text(SSH.format(lost=lost))
    (tmp_path / "ssh").chmod(0o755)
    environ = environment(1) | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environ["PORT"] = str(free_ports(1)[0])
    changes = {
        "train.num_steps": 100_000,
        "optimizer.final_ratio": 0.1,
        "train.tokens_per_batch": 6 * 96,  # six rows: for one device, two or three
        "eval.every_steps": 100_000,
        "checkpoint.every_steps": 10,
        "checkpoint.keep_params": 0,
        "logging.every_steps": 5,
        "parallel.heartbeat_seconds": 20,
    }

    def launch(*hosts):
        overrides = {n: v for n, v in (tiny_language_model | changes).items() if v is not None}
        process = subprocess.Popen(
            [LAUNCH / "hosts.sh", " ".join(hosts), *training(tmp_path / "run", overrides)],
            cwd=LAUNCH.parents[1],
            env=environ,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process, tmp_path / "run", lost

    yield launch
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def member(group, word):
    """The one process of a group whose command line has the word."""
    members = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(ProcessLookupError):  # it may end at any moment
            process = int(path.parent.name)
            if os.getpgid(process) == group and word.encode() in path.read_bytes().split(b"\0"):
                members.append(process)
    (process,) = members
    return process


def test_a_job_that_loses_a_host_goes_on_with_the_others(launched):
    # The loopback address has many names.
    process, workdir, lost = launched("127.0.0.1", "127.0.0.2", "127.0.0.3")
    wait_for_step(workdir, 20, [process])
    (lost / "127.0.0.3").touch()
    os.kill(member(process.pid, "--process_id=2"), signal.SIGKILL)
    wait_for_step(workdir, max(records(workdir)) + 20, [process])
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=120)
    assert process.returncode == RESUMABLE, told
    jobs = ("3 processes, 3 devices", "2 processes, 2 devices")
    for words in ("127.0.0.3 does not answer", *jobs, "continues from step"):
        assert words in told
