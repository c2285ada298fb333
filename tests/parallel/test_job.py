# SPDX-License-Identifier: Apache-2.0
"""Processes meet before JAX connects them: they agree, or all report the same difference."""

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import Mock

import pytest

from tests.parallel.jobs import free_ports
from tests.refusals import assert_refused
from transformer_jax.errors import UserError
from transformer_jax.parallel import job
from transformer_jax.parallel.job import Job, join_job, rendezvous


@pytest.fixture
def address():
    return f"127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(job, "_LINGER_SECONDS", 2)
    monkeypatch.setattr(job, "_TALK_SECONDS", 1)
    monkeypatch.setattr(job, "_RETRY_SECONDS", 0.05)


def prepares(**fingerprint):
    return lambda: ("own", fingerprint)


def fails(message):
    return Mock(side_effect=UserError(message))


def outcomes(address, *members, seconds=20):
    """Runs a rendezvous of threads in place of processes; returns their objects or errors.

    A member is (number of processes, number of this process, prepare).
    """

    def take_part(member):
        try:
            return rendezvous(address, *member, seconds)
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(take_part, members))


def test_processes_that_agree_get_their_own_objects(address):
    members = [(3, i, prepares(seed="1")) for i in (2, 0, 1)]
    assert outcomes(address, *members) == ["own"] * 3


ALIKE = {"seed": "1", "code": "a"}
MANY = {f"field {i}": str(i) for i in range(9)}
OTHER_SEED = ALIKE | {"seed": "2", "module mine.py": "b"}
CONTRADICTIONS = {
    "process 2: seed is 2, process 0's is 1; process 2: module mine.py is b, process 0 has none": [
        *((3, i, prepares(**ALIKE)) for i in (0, 1)),
        (3, 2, prepares(**OTHER_SEED)),
    ],
    "; ".join(f"process 1: it has no field {i}, process 0's is {i}" for i in range(3))
    + "; and 6 more differences": [(2, 0, prepares(**MANY)), (2, 1, prepares())],
    "process 0: no file": [(2, 0, fails("no file")), (2, 1, prepares())],
    "process 1: no file": [(2, 0, prepares()), (2, 1, fails("no file"))],
    "no file": [(2, i, fails("no file")) for i in range(2)],  # names no process
    "process 1 is one of 2 processes, process 0 one of 3": [(3 - i, i, prepares()) for i in (0, 1)],
    "two processes have the number 1 (--process_id)": [(3, i, prepares()) for i in (0, 1, 1)],
}


def test_all_processes_report_the_same_contradiction(address):
    answers = {words: outcomes(address, *members) for words, members in CONTRADICTIONS.items()}
    assert answers == {words: [words] * len(members) for words, members in CONTRADICTIONS.items()}


def test_missing_processes_are_named(address):
    (message,) = outcomes(address, (3, 0, prepares()), seconds=0.3)
    assert message.startswith(f"process 1, 2 did not connect to {address} within 0 s; start all")


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_a_coordinator_that_does_not_answer_is_an_error(host, caplog):
    caplog.set_level("INFO")
    (message,) = outcomes(f"{host}:9", (2, 1, prepares()), seconds=0.3)
    assert message.startswith(f"no coordinator at {host}:9 within 0 s (")
    assert caplog.messages == [f"waiting for the coordinator at {host}:9 ..."]


def test_a_port_that_is_taken_is_an_error(address):
    with socket.create_server(("", int(address.split(":")[1]))):
        (message,) = outcomes(address, (2, 0, prepares()))
    assert message.startswith("process 0 cannot listen at port")


def test_strangers_are_ignored(address):
    """Connections that send nothing, or something other than a report, are ignored."""
    host, port = address.split(":")
    done = threading.Event()

    def disturb():
        while not done.is_set():
            for text in (b"", b"GET / HTTP/1.1\n", b"[]\n", b'{"process": "1"}\n'):
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection((host, int(port))) as to,
                ):
                    to.sendall(text)
            time.sleep(0.05)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(disturb)
        found = outcomes(address, (2, 0, prepares()), (2, 1, prepares()))
        done.set()
    assert found == ["own", "own"]


def test_an_address_that_cannot_be_resolved_is_an_error():
    join = partial(join_job, prepare=prepares(), heartbeat_seconds=lambda own: 100)
    alone = "no scheduler describes the job's processes; give --coordinator=HOST:PORT"
    too_large = "--process_id=2 is too large for --num_processes=2"
    assert_refused(
        {alone: partial(join, Job()), too_large: partial(join, Job("127.0.0.1:9", 2, 2))}
    )
