"""The meeting of a job's processes before JAX connects them: do all of them mean the same job?

Process 0 listens at the coordinator's address, where JAX's service listens afterwards. The others
tell it what they are about to do, and all get the same answer. JAX alone would wait silently, and
abort the processes, or train something else, where they do not fit together.
"""

import collections
import dataclasses
import json
import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src.clusters import ClusterEnv

from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts
from transformer_jax.parallel.hosts import Prepare, disagreement, reported
from transformer_jax.runtime.platform import require_device

WAIT_SECONDS = 300
"""How long processes wait for each other to start."""

_LINGER_SECONDS = 30  # for the others to come and hear what is wrong
_TALK_SECONDS = 10  # for one that has come to say what it wants
_RETRY_SECONDS = 0.3
_MOST_BYTES = 1 << 20

logger = logging.getLogger(__name__)

type Report = dict[str, Any]
"""Of a process: its number, how many there are, and its statement or its error."""


def meet[Own](
    address: str,
    num_processes: int,
    process_id: int,
    prepare: Prepare[Own],
    seconds: float = WAIT_SECONDS,
) -> Own:
    """Waits for all processes of a job, and compares what they state.

    Args:
      address: HOST:PORT of process 0.
      num_processes: of the job.
      process_id: of this one.
      prepare: makes this process's own thing and its statement.
      seconds: how long to wait for the others.

    Returns:
      The process's own thing.

    Raises:
      UserError: two statements differ, or `prepare` raised it in one; in all processes. Or some
        process did not come in time.
    """
    own, report = reported(prepare)
    if "error" in report:
        seconds = min(seconds, _LINGER_SECONDS)
    report |= {"process": process_id, "processes": num_processes}
    talk = _hear if process_id == 0 else _ask
    if problem := talk(address, report, seconds):
        raise UserError(problem)
    return own


def _hear(address: str, own: Report, seconds: float) -> str:
    """What is wrong, as process 0 finds by hearing all; empty if nothing is. All are told."""
    others = own["processes"] - 1
    if others:
        told = own.get("error", f"waiting for {others} other processes at {address} ...")
        logger.info("%s", told)
    reports, open_connections = [own], []
    deadline = time.monotonic() + seconds
    with _listening(address) as server:
        while len(reports) <= others and (left := deadline - time.monotonic()) > 0:
            if found := _next_report(server, left):
                open_connections.append(found[0])
                reports.append(found[1])
            if _problem(reports):
                deadline = min(deadline, time.monotonic() + _LINGER_SECONDS)
        problem = _problem(reports) or _missing(reports, address, seconds)
        for connection in open_connections:
            with connection:
                _send(connection, {"problem": problem})
    return problem


def _listening(address: str) -> socket.socket:
    port = int(address.rpartition(":")[2])
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise UserError(
            f"process 0 cannot listen at port {port} ({error.strerror}): is another job, or second "
            "process 0, running? choose another port for --coordinator"
        ) from error


def _next_report(server: socket.socket, seconds: float) -> tuple[socket.socket, Report] | None:
    """A process that came, and what it reports; None where none came, or a stranger."""
    server.settimeout(seconds)
    try:
        connection, _ = server.accept()
        connection.settimeout(_TALK_SECONDS)
        report = _receive(connection)
        if type(report.get("process")) is int and type(report.get("processes")) is int:
            return connection, report
        connection.close()
    except (OSError, ValueError):
        pass
    return None


def _problem(reports: Sequence[Report]) -> str:
    """What the reports show to be wrong; empty if nothing is."""
    total, seen = reports[0]["processes"], set()
    for report in reports:
        number, count = report["process"], report["processes"]
        if count != total:
            return f"process {number} is one of {count} processes, process 0 one of {total}"
        if number in seen:
            return f"two processes have the number {number} (--process_id)"
        seen.add(number)
    return disagreement({report["process"]: report for report in reports})


def _missing(reports: Sequence[Report], address: str, seconds: float) -> str:
    came = {report["process"] for report in reports}
    missing = [str(i) for i in range(reports[0]["processes"]) if i not in came]
    if not missing:
        return ""
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return (
        f"process {', '.join(missing[:3])}{more} did not come to {address} within {seconds:.0f} s; "
        "start all --num_processes, and see that they reach this address"
    )


def _ask(address: str, own: Report, seconds: float) -> str:
    """What is wrong, as process 0 says; empty if nothing is."""
    logger.info("waiting for the coordinator at %s ...", address)
    host, _, port = address.rpartition(":")
    place = host.strip("[]"), int(port)
    deadline = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection(place, _TALK_SECONDS) as connection:
                _send(connection, own)
                connection.settimeout(seconds + _LINGER_SECONDS)
                return str(_receive(connection)["problem"])
        except (OSError, ValueError, KeyError) as error:
            reason = getattr(error, "strerror", None) or "it does not answer"
        if time.monotonic() > deadline:
            own_error = f"{own['error']}; besides, " if "error" in own else ""
            return (
                f"{own_error}no coordinator at {address} within {seconds:.0f} s ({reason}): "
                "is process 0 running there, and can it be reached?"
            )
        time.sleep(_RETRY_SECONDS)


def _send(connection: socket.socket, message: Report) -> None:
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError as error:
        logger.warning("a process went away before the job began: %s", error)


def _receive(connection: socket.socket) -> Report:
    """One JSON object, a line; ValueError for anything else."""
    with connection.makefile("rb") as file:
        line = file.readline(_MOST_BYTES)
    message = json.loads(line) if line.endswith(b"\n") else None
    if not isinstance(message, dict):
        raise ValueError("no message")
    return message


# FOLDED parallel.joining: How a process finds the others of its job and joins them.


_SAY_SO = "give --coordinator=HOST:PORT, --num_processes and --process_id"
_SECONDS_TO_END = 3600  # for others, while the first process brings its last files to a bucket


@dataclasses.dataclass(frozen=True)
class Job:
    """How a process finds the others; None is detected (Slurm, Open MPI, Kubernetes, TPU).

    Attributes:
      coordinator: HOST:PORT of process 0.
      num_processes: number of processes of the job.
      process_id: number of this process, from 0.
    """

    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None


def join[Own](job: Job, prepare: Prepare[Own], heartbeat_seconds: Callable[[Own], int]) -> Own:
    """Meets the other processes and connects with them; must come before any other use of JAX.

    Args:
      job: how to find it.
      prepare: makes this process's own thing, a config, and its statement.
      heartbeat_seconds: of the own thing; a process silent for longer counts as lost.

    Returns:
      The process's own thing.

    Raises:
      UserError: the others cannot be found, or they are about to do something else.
    """
    place, device_ids = _place(job)
    own = meet(*place, prepare)
    connect(*place, heartbeat_seconds(own), device_ids)
    return own


def _place(job: Job) -> tuple[tuple[str, int, int], Sequence[int] | None]:
    """Coordinator, number of processes and this one's; its devices, None for all of the machine.

    Raises:
      UserError: the environment does not tell what the job does not say, or it does not fit.
    """
    try:
        coordinator, count, number, device_ids = ClusterEnv.auto_detect_unset_distributed_params(
            job.coordinator, job.num_processes, job.process_id, None, None, WAIT_SECONDS
        )
    except (ValueError, KeyError, RuntimeError, OSError) as error:
        raise UserError(f"--distributed: {error}; {_SAY_SO}") from error
    if coordinator is None or count is None or number is None:
        raise UserError(f"--distributed: no scheduler tells the job's processes; {_SAY_SO}")
    if number >= count:
        raise UserError(
            f"--process_id={number} is too large for --num_processes={count}; count from 0"
        )
    return (coordinator, count, number), device_ids


def connect(
    coordinator: str,
    num_processes: int,
    process_id: int,
    heartbeat_seconds: int,
    device_ids: Sequence[int] | None = None,
) -> None:
    """Connects processes that have met; must come before any other use of JAX.

    Args:
      coordinator: HOST:PORT of process 0.
      num_processes: of the job.
      process_id: of this one.
      heartbeat_seconds: a process silent for longer counts as lost.
      device_ids: of this process, among those of its machine; None: all of them.

    Raises:
      UserError: the processes have not equally many devices.
    """
    jax.distributed.initialize(
        coordinator,
        num_processes,
        process_id,
        device_ids,
        heartbeat_timeout_seconds=heartbeat_seconds,
        shutdown_timeout_seconds=_SECONDS_TO_END,
    )
    hosts.end_after_sigterm(heartbeat_seconds)
    require_device()
    counts = collections.Counter(device.process_index for device in jax.devices())
    if len(set(counts.values())) > 1:
        told = ", ".join(f"process {i} has {counts[i]}" for i in sorted(counts))
        raise hosts.refusal(f"the processes of a job need equally many devices: {told}")
    if hosts.is_primary():
        logger.info("%d processes, %d devices", jax.process_count(), jax.device_count())
    else:
        logging.getLogger("transformer_jax").setLevel(logging.WARNING)
