"""Processes meet before JAX connects them: they agree, or all hear what differs."""

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from transformer_jax.errors import UserError
from transformer_jax.parallel import job
from transformer_jax.parallel.job import Job, join, meet

SECONDS = 20


@pytest.fixture
def address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(job, "_LINGER_SECONDS", 2)
    monkeypatch.setattr(job, "_TALK_SECONDS", 1)
    monkeypatch.setattr(job, "_RETRY_SECONDS", 0.05)


def states(**statement):
    return lambda: ("own", statement)


def fails(message):
    def prepare():
        raise UserError(message)

    return prepare


def outcomes(address, *members, seconds=SECONDS):
    """What each of some threads, in place of processes, returns or is told.

    A member is (number of processes, number of this one, prepare).
    """

    def take_part(member):
        try:
            return meet(address, *member, seconds)
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(take_part, members))


def test_processes_that_agree_go_on(address):
    members = [(3, i, states(seed="1")) for i in (2, 0, 1)]
    assert outcomes(address, *members) == ["own"] * 3


def test_all_hear_what_differs(address):
    alike = {"seed": "1", "code": "a"}
    found = outcomes(
        address,
        (3, 0, states(**alike)),
        (3, 1, states(**alike)),
        (3, 2, states(**alike | {"seed": "2", "module mine.py": "b"})),
    )
    (told,) = set(found)
    assert told == (
        "process 2: seed is 2, process 0's is 1; process 2: module mine.py is b, process 0 has none"
    )


def test_more_than_a_few_differences_are_counted(address):
    many = {f"field {i}": str(i) for i in range(9)}
    told, _ = outcomes(address, (2, 0, states(**many)), (2, 1, states()))
    assert told.endswith("and 6 differences more") and told.count("process 1:") == 3


@pytest.mark.parametrize("where", [0, 1])
def test_an_error_in_one_is_told_in_all(address, where):
    members = [(2, i, fails("no such file") if i == where else states()) for i in range(2)]
    assert outcomes(address, *members) == [f"process {where}: no such file"] * 2


def test_an_error_that_all_have_is_told_as_it_is(address):
    members = [(2, i, fails("no such file")) for i in range(2)]
    assert outcomes(address, *members) == ["no such file"] * 2


def test_different_numbers_of_processes(address):
    found = outcomes(address, (3, 0, states()), (2, 1, states()))
    assert found == ["process 1 is one of 2 processes, process 0 one of 3"] * 2


def test_one_number_twice(address):
    found = outcomes(address, (3, 0, states()), (3, 1, states()), (3, 1, states()))
    assert found == ["two processes have the number 1 (--process_id)"] * 3


def test_who_does_not_come_is_named(address):
    (told,) = outcomes(address, (3, 0, states()), seconds=0.3)
    assert told.startswith(f"process 1, 2 did not come to {address} within 0 s; start all")


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_a_coordinator_that_is_not_there_is_told(host, caplog):
    caplog.set_level("INFO")
    (told,) = outcomes(f"{host}:9", (2, 1, states()), seconds=0.3)
    assert told.startswith(f"no coordinator at {host}:9 within 0 s (")
    assert caplog.messages == [f"waiting for the coordinator at {host}:9 ..."]


def test_a_port_that_is_taken_is_told(address):
    with socket.create_server(("", int(address.split(":")[1]))):
        (told,) = outcomes(address, (2, 0, states()))
    assert told.startswith("process 0 cannot listen at port")


def test_strangers_are_no_processes(address):
    """Who knocks, says nothing, or says something else."""
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
        found = outcomes(address, (2, 0, states()), (2, 1, states()))
        done.set()
    assert found == ["own", "own"]


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (Job(), "no scheduler tells the job's processes; give --coordinator=HOST:PORT"),
        (Job("127.0.0.1:9", 2, 2), "--process_id=2 is too large for --num_processes=2"),
    ],
)
def test_a_job_that_cannot_be_found(job, message):
    with pytest.raises(UserError) as caught:
        join(job, states(), lambda own: 100)
    assert message in str(caught.value)
