# SPDX-License-Identifier: Apache-2.0
"""Starts and watches jobs of several processes on this machine; no test."""

import contextlib
import os
import socket
import subprocess
import sys
import time

from tests.conftest import QUICKSTART, records_of


def environment(devices):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def training(workdir, overrides):
    """Words of the command that trains in `workdir`."""
    fields = [f"--config.{name}={value}" for name, value in overrides.items()]
    return ["train", f"--config={QUICKSTART}", f"--workdir={workdir}", *fields]


def free_ports(count):
    """Numbers of ports of this machine that nobody uses."""
    with contextlib.ExitStack() as stack:
        own = ("127.0.0.1", 0)
        probes = [stack.enter_context(socket.create_server(own)) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def job(*words, program=("-m", "transformer_jax"), processes=2, devices=2, caches=()):
    """Context of the processes of a job, which are killed at the end.

    Args:
      words: command line.
      program: Python's arguments before the command line.
      processes: number of processes.
      devices: devices of each process.
      caches: cache folders of the processes; empty: the usual one.
    """
    address = f"127.0.0.1:{free_ports(1)[0]}"
    words += ("--distributed", f"--coordinator={address}", f"--num_processes={processes}")
    command = [sys.executable, *program, *words]
    started = [
        subprocess.Popen(
            [*command, f"--process_id={i}"],
            env=environment(devices) | ({"XDG_CACHE_HOME": str(caches[i])} if caches else {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def records(workdir, split="train"):
    """A run's records by step; none before the first."""
    written = records_of(workdir, split) if (workdir / "metrics.jsonl").exists() else []
    return {record["step"]: record for record in written}


def wait_for_step(workdir, step, processes):
    while max(records(workdir), default=0) < step:
        assert all(process.poll() is None for process in processes), processes[0].stderr.read()
        time.sleep(0.05)
