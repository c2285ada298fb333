# SPDX-License-Identifier: Apache-2.0
"""One writer at an address at a time."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.refusals import assert_refused
from transformer_jax.buckets import lease
from transformer_jax.buckets.lease import LEASE_FOLDER, Lease, LeaseLostError, last_copy
from transformer_jax.errors import UserError


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.5)


def lease_of(at, copy):
    return Lease(at, copy, last_copy(at), f"the process of {copy}")


def test_one_process_holds_the_lease_until_it_ends(at, monkeypatch):
    late = lease_of(at, "late")
    with lease_of(at, "a"):
        busy = "the process of a is training there; wait for it"
        assert_refused({busy: lease_of(at, "b").__enter__})
    monkeypatch.setattr(lease, "STALE_SECONDS", 60.0)  # nothing waits for it
    since = time.monotonic()
    assert last_copy(at) == "a"
    assert_refused({"another process has just begun to train there": late.__enter__})
    with lease_of(at, "b") as second:
        second.require()
    assert time.monotonic() - since < 50
    assert last_copy(at) == "b" and len(at.entries(LEASE_FOLDER)) == 1


def test_a_stale_lease_is_taken_over_and_its_holder_notices(at, monkeypatch):
    first = lease_of(at, "a").__enter__()
    first._stop.set()  # as if the machine had been halted
    first.require()
    with lease_of(at, "b") as second:
        with pytest.raises(LeaseLostError, match="has been taken over by the process of b"):
            first.require()
        first.__exit__()  # it may still leave
        second.require()
    assert last_copy(at) == "b"
    lease_of(at, "b").__enter__()._stop.set()
    monkeypatch.setattr(lease, "STALE_SECONDS", 60.0)
    since = time.monotonic()
    with lease_of(at, "b"):  # a process with the same copy need not wait
        assert time.monotonic() - since < 50


def test_one_of_many_concurrent_starts_succeeds(at):
    began = []

    def begin(copy):
        with contextlib.suppress(UserError), Lease(at, copy, None, copy):
            began.append(copy)
            time.sleep(0.3)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(begin, "abcd"))
    assert len(began) == 1


def test_a_damaged_lease_is_taken_over_and_other_names_are_no_leases(at):
    for name in ("007", "0", "٧", "²", "-1"):
        at.write(f"{LEASE_FOLDER}/{name}", b"{}")
    assert last_copy(at) is None
    at.write(f"{LEASE_FOLDER}/7", b"\xff{")
    with lease_of(at, "a") as held:
        held.require()
        assert {f"{LEASE_FOLDER}/{n}" for n in (7, 8)} & {*at.entries()} == {f"{LEASE_FOLDER}/8"}
