import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from transformer_jax.buckets import lease
from transformer_jax.buckets.lease import Lease, Lost, last_copy
from transformer_jax.errors import UserError


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(lease, "RENEWED_SECONDS", 0.05)
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.5)


def taken(at, copy):
    return Lease(at, copy, last_copy(at), f"the process of {copy}")


def test_one_holds_it_at_a_time(at):
    with (
        taken(at, "a"),
        pytest.raises(UserError, match="the process of a is training there; wait for it"),
        taken(at, "b"),
    ):
        pass
    assert last_copy(at) == "a"
    since = time.monotonic()
    with taken(at, "b") as second:  # the first has ended
        second.require()
    assert time.monotonic() - since < 0.4
    assert last_copy(at) == "b" and len(at.entries(lease.FOLDER)) == 1


def test_a_holder_that_shows_no_more_is_followed_and_sees_it(at):
    first = taken(at, "a").__enter__()
    first._ends.set()  # as if the machine had been halted
    first.require()
    with taken(at, "b") as second:
        with pytest.raises(Lost, match="has been taken over by the process of b"):
            first.require()
        first.__exit__()  # which it may still do
        second.require()
    assert last_copy(at) == "b"


def test_who_writes_from_the_same_copy_need_not_wait(at):
    taken(at, "a").__enter__()._ends.set()
    since = time.monotonic()
    with taken(at, "a"):
        assert time.monotonic() - since < 0.4


def test_of_two_who_begin_at_once_one_does(at):
    began = []

    def begin(copy):
        with contextlib.suppress(UserError), Lease(at, copy, None, copy):
            began.append(copy)
            time.sleep(0.3)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(begin, "abcd"))
    assert len(began) == 1


def test_who_found_the_address_as_it_is_no_longer_is_refused(at):
    late = taken(at, "late")
    with taken(at, "b"):
        pass
    with pytest.raises(UserError, match="another process began to train there"), late:
        pass


def test_a_damaged_lease_is_taken_over(at):
    at.write(f"{lease.FOLDER}/7", b"\xff{")
    with taken(at, "a") as held:
        held.require()
        assert at.entries(lease.FOLDER).keys() == {f"{lease.FOLDER}/8"}
