# SPDX-License-Identifier: Apache-2.0
"""Joining a job: its processes find each other, check that they agree, and connect through JAX.

Before JAX connects them, process 0 listens at the coordinator's address, where JAX's service
listens afterwards. The others send it their fingerprints, and all get the same answer. JAX alone
would wait silently, and abort the processes or train something else if they do not fit together.
"""

import collections
import contextlib
import dataclasses
import json
import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src.clusters import ClusterEnv

from transformer_jax.errors import UserError, user_errors
from transformer_jax.parallel import hosts
from transformer_jax.parallel.hosts import Prepare, find_disagreement, make_report
from transformer_jax.runtime.platform import require_device

WAIT_SECONDS = 300
"""How long processes wait for each other to start."""

_ADVICE = "give --coordinator=HOST:PORT, --num_processes and --process_id"
_LINGER_SECONDS = 30  # after an error, for the others to connect and hear of it
_TALK_SECONDS = 10  # for a connected process to send its report
_RETRY_SECONDS = 0.3
_MOST_BYTES = 1 << 20  # of a report
_SHUTDOWN_SECONDS = 3600  # the others wait while process 0 uploads its last files to a bucket

logger = logging.getLogger(__name__)

type Report = dict[str, Any]
"""Report of a process (`hosts.make_report`), with its number and the number of processes."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Address of a job. Fields that are None are detected (Slurm, Open MPI, Kubernetes, TPU).

    Attributes:
      coordinator: HOST:PORT of process 0.
      num_processes: number of processes of the job.
      process_id: number of this process, from 0.
    """

    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None


def join_job[Own](job: Job, prepare: Prepare[Own], heartbeat_seconds: Callable[[Own], int]) -> Own:
    """Meets the other processes and connects with them; returns the object of this process. Call it
    before any other use of JAX.

    Args:
      prepare: makes an object for this process, a config, and its fingerprint.
      heartbeat_seconds: of that object; a process that is silent for longer counts as lost.

    Raises:
      UserError: a field of the job is neither given nor detected, or they do not fit together; the
        others cannot be found, or the processes do not agree.
    """
    kinds = (ValueError, KeyError, RuntimeError, OSError)
    with user_errors("--distributed", f"; {_ADVICE}", kinds):
        coordinator, count, number, device_ids = ClusterEnv.auto_detect_unset_distributed_params(
            job.coordinator, job.num_processes, job.process_id, None, None, WAIT_SECONDS
        )
    if coordinator is None or count is None or number is None:
        raise UserError(f"--distributed: no scheduler describes the job's processes; {_ADVICE}")
    if number >= count:
        raise UserError(
            f"--process_id={number} is too large for --num_processes={count}; count from 0"
        )
    made = rendezvous(coordinator, count, number, prepare)
    connect(coordinator, count, number, heartbeat_seconds(made), device_ids)
    return made


def connect(
    coordinator: str,
    num_processes: int,
    process_id: int,
    heartbeat_seconds: int,
    device_ids: Sequence[int] | None = None,
) -> None:
    """Connects processes through JAX. Call it before any other use of JAX.

    Args:
      coordinator: HOST:PORT of process 0.
      heartbeat_seconds: a process that is silent for longer counts as lost.
      device_ids: devices of this process among those of its machine; None: all of them.

    Raises:
      UserError: the processes have different numbers of devices.
    """
    jax.distributed.initialize(
        coordinator,
        num_processes,
        process_id,
        device_ids,
        heartbeat_timeout_seconds=heartbeat_seconds,
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
    )
    hosts.exit_after_sigterm(heartbeat_seconds)
    require_device()
    counts = collections.Counter(device.process_index for device in jax.devices())
    if len(set(counts.values())) > 1:
        by_process = ", ".join(f"process {i} has {counts[i]}" for i in sorted(counts))
        raise hosts.error_for_all(
            f"the processes of a job need the same number of devices: {by_process}"
        )
    if hosts.is_primary():
        logger.info("%d processes, %d devices", jax.process_count(), jax.device_count())
    else:
        logging.getLogger("transformer_jax").setLevel(logging.WARNING)


def rendezvous[Own](
    address: str,
    num_processes: int,
    process_id: int,
    prepare: Prepare[Own],
    seconds: float = WAIT_SECONDS,
) -> Own:
    """Waits for all processes of a job and compares their fingerprints; returns the object of this
    process.

    Args:
      address: HOST:PORT of process 0.
      seconds: how long to wait for the others.

    Raises:
      UserError: two fingerprints differ, or `prepare` raised it in a process (all processes raise
        it), or a process did not connect in time.
    """
    made, report = make_report(prepare)
    if "error" in report:
        seconds = min(seconds, _LINGER_SECONDS)
    report |= {"process": process_id, "processes": num_processes}
    exchange = _collect_reports if process_id == 0 else _send_report
    problem = exchange(address, report, seconds)
    if problem:
        raise UserError(problem)
    return made


def _collect_reports(address: str, report: Report, seconds: float) -> str:
    """Collects the reports in process 0 and answers all. Returns the problem; empty if none."""
    others = report["processes"] - 1
    if others:
        text = report.get("error", f"waiting for {others} other processes at {address} ...")
        logger.info("%s", text)
    reports = [report]
    connections: list[socket.socket] = []
    deadline = time.monotonic() + seconds
    with _listening(address) as server:
        while len(reports) <= others and time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError):  # nobody connected, or a stranger
                server.settimeout(deadline - time.monotonic())
                connections.append(server.accept()[0])
                connections[-1].settimeout(_TALK_SECONDS)
                reports.append(_receive(connections[-1], "process", "processes"))
            if _problem(reports):  # the others will connect soon, or not at all
                deadline = min(deadline, time.monotonic() + _LINGER_SECONDS)
        problem = _problem(reports) or _missing(reports, address, seconds)
        for connection in connections:
            with connection, contextlib.suppress(OSError):  # it has ended
                _send(connection, {"problem": problem})
    return problem


def _listening(address: str) -> socket.socket:
    port = int(address.rpartition(":")[2])
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise UserError(
            f"process 0 cannot listen at port {port} ({error.strerror}): is another job, or second "
            "process 0, running? choose another port for --coordinator"
        ) from error


def _problem(reports: Sequence[Report]) -> str:
    """Describes how the reports contradict each other; empty if they agree."""
    total = reports[0]["processes"]
    seen = set()
    for report in reports:
        number = report["process"]
        count = report["processes"]
        if count != total:
            return f"process {number} is one of {count} processes, process 0 one of {total}"
        if number in seen:
            return f"two processes have the number {number} (--process_id)"
        seen.add(number)
    return find_disagreement({report["process"]: report for report in reports})


def _missing(reports: Sequence[Report], address: str, seconds: float) -> str:
    present = {report["process"] for report in reports}
    missing = [str(i) for i in range(reports[0]["processes"]) if i not in present]
    if not missing:
        return ""
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return (
        f"process {', '.join(missing[:3])}{more} did not connect to {address} within "
        f"{seconds:.0f} s; start all --num_processes, and check that they reach this address"
    )


def _send_report(address: str, report: Report, seconds: float) -> str:
    """Sends the report to process 0. Returns the problem in its answer; empty if none."""
    logger.info("waiting for the coordinator at %s ...", address)
    host, _, port = address.rpartition(":")
    target = host.strip("[]"), int(port)  # brackets of an IPv6 address
    deadline = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection(target, _TALK_SECONDS) as connection:
                _send(connection, report)
                # Process 0 answers when it has all reports, or has waited for them in vain.
                connection.settimeout(seconds + _LINGER_SECONDS)
                return str(_receive(connection, "problem")["problem"])
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it does not answer"
        if time.monotonic() > deadline:
            own_error = f"{report['error']}; also, " if "error" in report else ""
            return (
                f"{own_error}no coordinator at {address} within {seconds:.0f} s ({reason}): "
                "is process 0 running there, and can it be reached?"
            )
        time.sleep(_RETRY_SECONDS)


def _send(connection: socket.socket, message: Report) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket, *names: str) -> Report:
    """Reads a line that holds a JSON object with these names; ValueError for anything else."""
    with connection.makefile("rb") as file:
        message = json.loads(file.readline(_MOST_BYTES))
    if not isinstance(message, dict) or not message.keys() >= set(names):
        raise ValueError("no message")
    return message
