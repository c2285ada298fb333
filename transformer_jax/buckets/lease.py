# SPDX-License-Identifier: Apache-2.0
"""Lease: the exclusive right of one process to write at an address.

    .lease/N    holder of the N-th lease: {"copy", "told", "beat", "ended"}

A bucket has no locks, but a write that succeeds only if the file does not exist (`Bucket.create`):
the process that creates N+1 has the lease, and the holder of N sees that it has lost it. A lease
that has neither ended nor been renewed for a while is taken over.

A holder that was halted for longer than that looks for a newer lease before it writes again.
Uploads that it had already started still arrive; the digests of a checkpoint reveal such a mixture.
"""

import json
import logging
import re
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from typing import Self

from transformer_jax.buckets.bucket import Bucket, BucketError, NotInBucketError
from transformer_jax.errors import BusyError, UserError

logger = logging.getLogger(__name__)

LEASE_FOLDER = ".lease"
RENEW_SECONDS = 10.0
STALE_SECONDS = 60.0
"""A lease that is not renewed for this time is taken over."""


@dataclass(frozen=True)
class LeaseRecord:
    """Content of a lease's file.

    Attributes:
      copy: id of the holder's working copy.
      told: description of the holder, for messages.
      beat: changes each time the lease is renewed.
      ended: True after the holder has given the lease back.
    """

    copy: str
    told: str
    beat: str
    ended: bool = False

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class LeaseLostError(UserError):
    """Another process has taken the lease over."""


class Lease:
    """The exclusive right to write at an address, while the block runs.

    Args:
      copy: id of the working copy to write from. No other process of this machine uses it.
      last: result of `last_copy` a moment ago.
      holder: description of this process, for messages of others.

    Raises:
      BusyError: from entering: another process writes there.
      UserError: from entering: the bucket cannot be written.
    """

    def __init__(self, bucket: Bucket, copy: str, last: str | None, holder: str):
        self._bucket = bucket
        self._copy = copy
        self._last = last
        self._holder = holder
        self._stop = threading.Event()
        self._renewal = threading.Thread(target=self._renew, daemon=True, name="lease")
        self._number = 0

    def __enter__(self) -> Self:
        self._number, held = _newest(self._bucket)
        if held and not held.ended and held.copy != self._copy:
            self._require_stale(self._number, held)
        self._number += 1
        # The working copy was chosen by who wrote last; another copy may have written since.
        changed = (held and held.copy) != self._last
        if changed or not self._bucket.create(self._name, self._content()):
            raise BusyError(
                f"{self._bucket.address}: another process has just begun to train there"
            )
        # Old leases are deleted after the new one is written: without any, another could take 1.
        for number in _numbers(self._bucket):
            if number < self._number:
                self._bucket.delete(f"{LEASE_FOLDER}/{number}")
        self._renewal.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._renewal.join()
        try:
            if max(_numbers(self._bucket), default=0) <= self._number:
                self._bucket.write(self._name, self._content(ended=True))
        except BucketError as error:
            logger.warning("%s; other writers wait %.0f s before they start", error, STALE_SECONDS)

    def require(self) -> None:
        """Raises LeaseLostError if another process holds a newer lease."""
        number, newest = _newest(self._bucket)
        if newest and number > self._number:
            raise LeaseLostError(f"{self._bucket.address} has been taken over by {newest.told}")

    @property
    def _name(self) -> str:
        return f"{LEASE_FOLDER}/{self._number}"

    def _content(self, ended: bool = False) -> bytes:
        return LeaseRecord(self._copy, self._holder, uuid.uuid4().hex, ended).encoded()

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            try:
                self._bucket.write(self._name, self._content())
            except BucketError as error:
                logger.warning("%s", error)

    def _require_stale(self, number: int, held: LeaseRecord) -> None:
        """Waits until a lease is stale; raises BusyError if it is renewed or replaced before."""
        logger.info(
            "%s: %s has not ended; its lease is taken over unless it is renewed within %.0f s",
            self._bucket.address,
            held.told,
            STALE_SECONDS,
        )
        deadline = time.monotonic() + STALE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(min(RENEW_SECONDS, STALE_SECONDS) / 10)
            if _newest(self._bucket) != (number, held):
                raise BusyError(
                    f"{self._bucket.address}: {held.told} is training there; wait for it, or "
                    "choose another --workdir"
                )


def last_copy(bucket: Bucket) -> str | None:
    """Id of the working copy that last wrote to an address; None if none did."""
    _, newest = _newest(bucket)
    return newest.copy if newest else None


def other_holder(bucket: Bucket, copy: str) -> LeaseRecord | None:
    """The newest lease if it has not ended and is that of another working copy; else None."""
    _, newest = _newest(bucket)
    return newest if newest and not newest.ended and newest.copy != copy else None


def _numbers(bucket: Bucket) -> list[int]:
    """Numbers of the leases; other names in their folder, such as "007", are none."""
    names = (name.rpartition("/")[2] for name in bucket.entries(LEASE_FOLDER))
    return sorted(int(name) for name in names if re.fullmatch("[1-9][0-9]{0,17}", name))


def _newest(bucket: Bucket) -> tuple[int, LeaseRecord | None]:
    """Number and record of the last lease; (0, None) if there was none."""
    for number in reversed(_numbers(bucket)):
        try:
            return number, LeaseRecord(**json.loads(bucket.read(f"{LEASE_FOLDER}/{number}")))
        except NotInBucketError:  # another process has just taken over
            return _newest(bucket)
        except (ValueError, TypeError, RecursionError):  # damaged
            return number, LeaseRecord("", "a process whose lease is damaged", "")
    return 0, None
