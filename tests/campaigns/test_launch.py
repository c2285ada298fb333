# SPDX-License-Identifier: Apache-2.0
"""A launched job continues on the hosts that are left."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
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
        overrides = (tiny_language_model | changes).items()
        fields = [f"--config.{name}={value}" for name, value in overrides if value is not None]
        words = ["train", "--config=configs/quickstart.py", f"--workdir={tmp_path / 'run'}"]
        process = subprocess.Popen(
            [LAUNCH / "hosts.sh", " ".join(hosts), *words, *fields],
            cwd=LAUNCH.parents[1],
            env=os.environ
            | {
                "PATH": f"{tmp_path}:{os.environ['PATH']}",
                "PORT": port,
                "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1",
            },
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
    (found,) = (
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if group_of(int(path.parent.name)) == group
        and word.encode() in path.read_bytes().split(b"\0")
    )
    return found


def group_of(process):
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(process)


def last_step(workdir):
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return max((json.loads(line)["step"] for line in lines), default=0)


def wait_for_step(workdir, step, process):
    end = time.monotonic() + 240
    while last_step(workdir) < step:
        assert process.poll() is None and time.monotonic() < end, process.stderr.read()
        time.sleep(0.2)


def test_a_job_that_loses_a_host_goes_on_with_the_others(launched):
    # The loopback address has many names.
    process, workdir, lost = launched("127.0.0.1", "127.0.0.2", "127.0.0.3")
    wait_for_step(workdir, 20, process)
    (lost / "127.0.0.3").touch()
    os.kill(member(process.pid, "--process_id=2"), signal.SIGKILL)
    wait_for_step(workdir, last_step(workdir) + 20, process)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=120)
    assert process.returncode == RESUMABLE, told
    assert "127.0.0.3 does not answer" in told
    assert "3 processes, 3 devices" in told
    assert "2 processes, 2 devices" in told
    assert "continues from step" in told
