"""What a run writes on disk, brought to a bucket while it goes on.

At any moment the bucket holds a workdir that a run can go on from: a checkpoint's manifest is
written after all else of it, and deleted before, and what the records tell reaches at least as far
as the newest checkpoint does.
"""

import contextlib
import functools
import logging
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from transformer_jax.buckets.bucket import Bucket, BucketError, MirrorLayout, at_once, bring
from transformer_jax.buckets.lease import FOLDER, Lease, Lost
from transformer_jax.errors import UserError
from transformer_jax.runtime.files import entries_below, path_below, remove

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
GROWN_SECONDS = 30.0
"""Between two times that a file is brought which grows, such as the records."""
_SMALL = 2**16  # bytes: such a file is written anew rather than compared
_TRIES = 3
_TOLD_SECONDS = 60  # between two warnings


class _Stamp(NamedTuple):
    size: int
    changed: int  # nanoseconds since 1970


class Mirror:
    """Brings a folder to a bucket, while the block runs and at its end.

    Args:
      bucket: where to.
      folder: the working copy. Entering brings what the bucket has into it.
      pins: a folder on the same disk, which is not there yet.
      layout: of its files.
      lease: held while the block runs.

    Raises:
      UserError: the bucket cannot be read; from entering. What the folder holds could not all be
        brought, or another writer has taken over; from leaving.
    """

    def __init__(
        self, bucket: Bucket, folder: Path, pins: Path, layout: MirrorLayout, lease: Lease
    ):
        self._bucket, self._folder, self._pins = bucket, folder, pins
        self._layout, self._lease = layout, lease
        self._known: dict[str, _Stamp] = {}  # files that are in the bucket as they were here then
        self._pushed: dict[str, float] = {}  # when
        self._damaged: dict[str, _Stamp] = {}  # units not to be brought, by their seals
        self._ends = threading.Event()
        self._lost: Lost | None = None
        self._told = -float(_TOLD_SECONDS)
        self._pushing = threading.Thread(target=self._push_again, daemon=True, name="mirror")

    def __enter__(self) -> Self:
        self._pull()
        self._pushing.start()
        return self

    def __exit__(self, _: object, raised: BaseException | None, *__: object) -> None:
        self._ends.set()
        self._pushing.join()
        try:
            if self._lost:
                raise self._lost
            self._push(whole=True)
            self._require_all()
        except UserError as error:
            told = f"{raised}; " if isinstance(raised, UserError) else ""
            kept = f"what this run has written is in {self._folder}"
            raise UserError(f"{told}{error}; {kept}") from error

    def _pull(self) -> None:
        """Brings what the folder lacks, and what is damaged there."""
        there = {
            name: entry
            for name, entry in self._bucket.entries().items()
            if not name.startswith(f"{FOLDER}/")
        }
        settled, here = self._layout.settled(there), self._files()
        units = {self._layout.unit_of(name) for name in settled | here.keys()}
        for unit in filter(None, units):
            if self._layout.damage(self._folder / unit) is None:
                continue
            if self._layout.seal_of(unit) in settled:
                remove(path_below(self._folder, unit))
            else:
                self._damaged[unit] = here[self._layout.seal_of(unit)]
        here = self._files()
        lacking = settled - here.keys()
        bring(self._bucket, self._folder, lacking, self._layout.is_seal)
        for name, stamp in self._files().items():
            large = stamp.size >= _SMALL and self._layout.unit_of(name) is not None
            same = name in there and there[name].size == stamp.size
            if same and (name in lacking or large):
                self._known[name] = stamp

    def _push_again(self) -> None:
        while not self._ends.wait(LOOK_SECONDS):
            try:
                self._push()
            except Lost as error:
                self._lost = error
                logger.warning("%s; this run stops", error)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            except (BucketError, OSError) as error:
                if time.monotonic() > self._told + _TOLD_SECONDS:
                    self._told = time.monotonic()
                    logger.warning("%s; training goes on, and it is tried again", error)

    def _push(self, whole: bool = False) -> None:
        """Brings what has changed; `whole`: also what has only just grown.

        What units there are is looked up once: each is brought to its end, even if it is deleted
        here meanwhile, so that a run that saves faster than the network carries is brought, too.
        """
        found, layout = self._files(), self._layout
        gone = self._known.keys() - found.keys()
        changed = {name for name, stamp in found.items() if self._known.get(name) != stamp}
        plain = {name for name in changed if layout.unit_of(name) is None}
        touched = {layout.unit_of(name) for name in (changed | gone) - plain}
        units = [unit for unit in touched if unit and layout.seal_of(unit) in found]
        gone = {name for name in gone if layout.unit_of(name) not in units}
        if not whole and not units:  # the records of a new checkpoint come with it
            now = time.monotonic()
            plain = {n for n in plain if now > self._pushed.get(n, -GROWN_SECONDS) + GROWN_SECONDS}
        if not (gone or plain or units):
            return
        self._lease.require()
        units.sort(key=lambda unit: -found[layout.seal_of(unit)].changed)  # the newest first
        with self._pinned(units, found) as files:
            at_once(functools.partial(self._send, found, files), plain)
            for unit in units:
                if unit == units[0] or (self._folder / unit).exists():
                    self._bring_unit(unit, found, files)
        self._forget(gone)

    @contextlib.contextmanager
    def _pinned(self, units: list[str], found: dict[str, _Stamp]) -> Iterator[dict[str, Path]]:
        """Second names (hard links) of the files of units, which stay if these are deleted."""
        files = {}
        try:
            for name in found:
                if self._layout.unit_of(name) in units:
                    files[name] = self._pins / name
                    files[name].parent.mkdir(parents=True, exist_ok=True)
                    try:
                        files[name].hardlink_to(self._folder / name)
                    except OSError:  # gone by now; or a disk that has no second names
                        files[name] = self._folder / name
            yield files
        finally:
            remove(self._pins)

    def _bring_unit(self, unit: str, found: dict[str, _Stamp], files: dict[str, Path]) -> None:
        layout, seal = self._layout, self._layout.seal_of(unit)
        members = {name for name in found if layout.unit_of(name) == unit} - {seal}
        if not {f"{unit}/{name}" for name in self._listed(files[seal].parent)} <= members:
            return None  # it is being deleted, or something in it written anew
        changed = {name for name in members if self._known.get(name) != found[name]}
        known = {name for name in self._known if layout.unit_of(name) == unit} - {seal}
        if known - (members - changed):  # some will be others than the seal tells, or be none
            self._delete({seal} & self._known.keys())
        at_once(functools.partial(self._send, found, files), changed)
        self._delete(known - members)
        for _ in range(_TRIES):
            there = self._bucket.entries(unit)
            lost = [n for n in members if n not in there or there[n].size != found[n].size]
            if not lost:
                return self._send(found, files, seal)
            if not all(files[name].exists() for name in lost):
                return None  # deleted meanwhile
            at_once(functools.partial(self._send, found, files), lost)
        raise BucketError(f"{self._bucket.address}/{lost[0]} is written, but not there")

    def _listed(self, unit: Path) -> Collection[str]:
        try:
            return self._layout.listed(unit)
        except (OSError, ValueError):  # gone meanwhile, or damaged
            return [""]

    def _forget(self, gone: Collection[str]) -> None:
        """Deletes what is gone here, of units the seals first, as long as another unit is there."""
        seals = {name for name in self._known if self._layout.is_seal(name)}
        if seals and not seals - set(gone):
            gone = {name for name in gone if self._layout.unit_of(name) is None}
        self._delete({name for name in gone if self._layout.is_seal(name)})
        self._delete({name for name in gone if name in self._known})

    def _delete(self, names: Collection[str]) -> None:
        at_once(self._bucket.delete, names)
        for name in names:
            self._known.pop(name, None)

    def _send(self, found: dict[str, _Stamp], files: dict[str, Path], name: str) -> None:
        path = files.get(name, self._folder / name)
        try:
            if name in files and found[name].size >= _SMALL:
                self._bucket.upload(path, name)
            else:  # it may grow while it is read
                self._bucket.write(name, path.read_bytes())
        except (BucketError, OSError):
            if path.exists():
                raise
            return  # gone meanwhile
        self._known[name], self._pushed[name] = found[name], time.monotonic()

    def _require_all(self) -> None:
        """Sends what the bucket has lost, once nothing changes any more."""
        for _ in range(_TRIES):
            found, there = self._files(), self._bucket.entries()
            lost = [
                n for n, stamp in found.items() if n not in there or there[n].size != stamp.size
            ]
            if not lost:
                return
            self._known = {name: stamp for name, stamp in self._known.items() if name not in lost}
            self._push(whole=True)
        raise BucketError(f"{self._bucket.address}/{lost[0]} is written, but not there")

    def _files(self) -> dict[str, _Stamp]:
        """The regular files of the folder that are settled, and in no damaged unit."""
        found = {}
        for entry in entries_below(self._folder):
            try:
                status = entry.stat(follow_symlinks=False)
                if entry.is_file(follow_symlinks=False):
                    name = Path(entry.path).relative_to(self._folder).as_posix()
                    found[name] = _Stamp(status.st_size, status.st_mtime_ns)
            except FileNotFoundError:
                continue  # gone meanwhile
        damaged = {
            u for u, seal in self._damaged.items() if found.get(self._layout.seal_of(u)) == seal
        }
        settled = self._layout.settled(found)
        return {name: found[name] for name in settled if self._layout.unit_of(name) not in damaged}
