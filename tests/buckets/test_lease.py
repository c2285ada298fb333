# SPDX-License-Identifier: Apache-2.0
"""One writer at an address at a time."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from transformer_jax.buckets import lease
from transformer_jax.buckets.lease import Lease, LeaseLostError, last_copy
from transformer_jax.errors import UserError


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.5)


def lease_of(at, copy):
    return Lease(at, copy, last_copy(at), f"the process of {copy}")


def test_one_process_holds_the_lease_at_a_time(at, monkeypatch):
    with (
        lease_of(at, "a"),
        pytest.raises(UserError, match="the process of a is training there; wait for it"),
        lease_of(at, "b"),
    ):
        pass
    assert last_copy(at) == "a"
    monkeypatch.setattr(lease, "STALE_SECONDS", 60.0)
    since = time.monotonic()
    with lease_of(at, "b") as second:  # the first has ended
        second.require()
    assert time.monotonic() - since < 50
    assert last_copy(at) == "b" and len(at.entries(lease.LEASE_FOLDER)) == 1


def test_a_stale_lease_is_taken_over_and_its_holder_notices(at):
    first = lease_of(at, "a").__enter__()
    first._stop.set()  # as if the machine had been halted
    first.require()
    with lease_of(at, "b") as second:
        with pytest.raises(LeaseLostError, match="has been taken over by the process of b"):
            first.require()
        first.__exit__()  # it may still leave
        second.require()
    assert last_copy(at) == "b"


def test_a_process_with_the_same_copy_need_not_wait(at, monkeypatch):
    monkeypatch.setattr(lease, "STALE_SECONDS", 60.0)
    lease_of(at, "a").__enter__()._stop.set()
    since = time.monotonic()
    with lease_of(at, "a"):
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


def test_a_start_is_refused_if_another_process_wrote_in_between(at):
    late = lease_of(at, "late")
    with lease_of(at, "b"):
        pass
    with pytest.raises(UserError, match="another process has just begun to train there"), late:
        pass


def test_a_damaged_lease_is_taken_over(at):
    at.write(f"{lease.LEASE_FOLDER}/7", b"\xff{")
    with lease_of(at, "a") as held:
        held.require()
        assert at.entries(lease.LEASE_FOLDER).keys() == {f"{lease.LEASE_FOLDER}/8"}


@pytest.mark.parametrize("name", ["007", "0", "٧", "²", "-1"])
def test_other_names_are_no_leases(at, name):
    at.write(f"{lease.LEASE_FOLDER}/{name}", b"{}")
    assert last_copy(at) is None
