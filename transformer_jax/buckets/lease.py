"""One writer at an address: a lease, renewed by who holds it.

    .lease/N    who took the N-th lease: {"copy", "told", "beat", "ended"}

A bucket has no locks. What it has is a write that succeeds only where there is no file yet
(`Bucket.create`): who creates N+1 has the lease, and who held N sees that he has it no longer.
A lease that has neither ended nor been renewed for a while is taken over.

A holder that was halted for longer than that and then goes on looks for a newer lease before it
writes. What is on its way at that moment still arrives: there is no way to take that back. Files of
checkpoints carry digests, so that such a mixture would be seen.
"""

import json
import logging
import threading
import time
import uuid
from dataclasses import asdict, dataclass, replace
from typing import Self

from transformer_jax.buckets.bucket import Bucket, BucketError, Missing
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

FOLDER = ".lease"
RENEWED_SECONDS = 10.0
STALE_SECONDS = 60.0


@dataclass(frozen=True)
class Record:
    """What a lease says.

    Attributes:
      copy: the working copy that is written from.
      told: who holds it, for people.
      beat: changes each time it is renewed.
      ended: whether it was given back.
    """

    copy: str
    told: str
    beat: str
    ended: bool = False

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class Lost(UserError):
    """Another writer has taken over."""


class Lease:
    """The sole right to write at an address, while the block runs.

    Args:
      bucket: the address.
      copy: the working copy that is written from. Its last holder is known to be gone.
      last: the copy that was written from last, as `last_copy` has just told.
      told: who writes, for people.

    Raises:
      UserError: another one writes there, or the bucket cannot be written; from entering.
    """

    def __init__(self, bucket: Bucket, copy: str, last: str | None, told: str):
        self._bucket, self._copy, self._last, self._told = bucket, copy, last, told
        self._ends = threading.Event()
        self._renewing = threading.Thread(target=self._renew, daemon=True, name="lease")
        self._number = 0

    def __enter__(self) -> Self:
        self._number, held = _newest(self._bucket)
        if held and not held.ended and held.copy != self._copy:
            self._require_stale(self._number, held)
        self._number += 1
        changed = (held and held.copy) != self._last
        if changed or not self._bucket.create(self._name, self._record().encoded()):
            raise UserError(
                f"{self._bucket.address}: another process began to train there just now"
            )
        for number in _numbers(self._bucket):
            if number < self._number:
                self._bucket.delete(f"{FOLDER}/{number}")
        self._renewing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._renewing.join()
        try:
            if max(_numbers(self._bucket), default=0) <= self._number:
                self._bucket.write(self._name, replace(self._record(), ended=True).encoded())
        except BucketError as error:
            logger.warning("%s; others wait %.0f s before they write there", error, STALE_SECONDS)

    def require(self) -> None:
        """Raises Lost where another one holds a newer lease."""
        number, newest = _newest(self._bucket)
        if newest and number > self._number:
            raise Lost(f"{self._bucket.address} has been taken over by {newest.told}")

    @property
    def _name(self) -> str:
        return f"{FOLDER}/{self._number}"

    def _record(self) -> Record:
        return Record(self._copy, self._told, uuid.uuid4().hex)

    def _renew(self) -> None:
        while not self._ends.wait(RENEWED_SECONDS):
            try:
                self._bucket.write(self._name, self._record().encoded())
            except BucketError as error:
                logger.warning("%s", error)

    def _require_stale(self, number: int, held: Record) -> None:
        """Waits until a lease has not been renewed for so long that its holder must be gone;
        raises UserError as soon as it is renewed, or a newer one is taken."""
        logger.info(
            "%s: %s has not ended; taken over unless it shows in %.0f s",
            *(self._bucket.address, held.told, STALE_SECONDS),
        )
        until = time.monotonic() + STALE_SECONDS
        while time.monotonic() < until:
            time.sleep(min(RENEWED_SECONDS, STALE_SECONDS) / 10)
            if _newest(self._bucket) != (number, held):
                raise UserError(
                    f"{self._bucket.address}: {held.told} is training there; wait for it, or "
                    "choose another --workdir"
                )


def last_copy(bucket: Bucket) -> str | None:
    """The working copy from which an address was written last; None where there was none."""
    newest = _newest(bucket)[1]
    return newest.copy if newest else None


def _numbers(bucket: Bucket) -> list[int]:
    names = (name.rpartition("/")[2] for name in bucket.entries(FOLDER))
    return sorted(int(name) for name in names if name.isdecimal())


def _newest(bucket: Bucket) -> tuple[int, Record | None]:
    """The last lease and its number; (0, None) where there was none."""
    for number in reversed(_numbers(bucket)):
        try:
            return number, Record(**json.loads(bucket.read(f"{FOLDER}/{number}")))
        except Missing:  # gone by now, since another one has taken over
            return _newest(bucket)
        except (ValueError, TypeError):  # damaged: whoever it was
            return number, Record("", "a process whose lease is damaged", "")
    return 0, None
