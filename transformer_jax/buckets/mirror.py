# SPDX-License-Identifier: Apache-2.0
"""Mirror: uploads a run's folder to a bucket while the run writes it.

The run can be resumed from the bucket at any moment. The mark of a run is written before its other
files. The manifest of a checkpoint is written after its other files and deleted before them, and
the records reach at least as far as the newest checkpoint.
"""

import contextlib
import functools
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from transformer_jax.buckets.bucket import Bucket, BucketError, download_files, run_in_parallel
from transformer_jax.buckets.lease import LEASE_FOLDER, Lease, LeaseLostError
from transformer_jax.errors import UserError
from transformer_jax.runtime.files import entries_below, path_below, remove

logger = logging.getLogger(__name__)

SCAN_SECONDS = 2.0
"""Time between two looks at the folder."""
GROWING_FILE_SECONDS = 30.0
"""Time between two uploads of a file that grows, such as the records."""

_SMALL = 2**16  # bytes: a smaller file is uploaded again rather than compared
_TRIES = 3
_WARNING_SECONDS = 60  # between two warnings


@dataclass(frozen=True)
class MirrorLayout:
    """Layout of a mirrored folder, by the names of its files.

    A unit is a folder that is complete or absent, such as a checkpoint. Its seal is the file that
    is written last and deleted first.

    Attributes:
      unit: matches the beginning of a name, up to the unit's folder. A file whose name it does not
        match belongs to no unit.
      seal: name of the seal in its unit.
      members: reads the names of a unit's files from the seal.
      mark: matches names of files that mark a folder as ours. They are uploaded before all others,
        so that a folder in the bucket is never without its mark.
      temporary: matches names of files that will be renamed; they are not uploaded.
      damage: describes the damage of a unit on disk; None if it is intact.
    """

    unit: re.Pattern[str]
    seal: str
    members: Callable[[Path], Collection[str]]
    mark: re.Pattern[str]
    temporary: re.Pattern[str]
    damage: Callable[[Path], str | None]

    def unit_of(self, name: str) -> str | None:
        """The unit that a file belongs to."""
        match = self.unit.match(name)
        return match[0] if match else None

    def seal_of(self, unit: str) -> str:
        """The name of a unit's seal."""
        return f"{unit}/{self.seal}"

    def is_seal(self, name: str) -> bool:
        """Returns True if a file is the seal of a unit."""
        unit = self.unit_of(name)
        return unit is not None and name == self.seal_of(unit)

    def complete(self, names: Iterable[str]) -> set[str]:
        """Names without temporary files and without the files of units that have no seal."""
        names = {name for name in names if not self.temporary.search(name)}
        units = {name: self.unit_of(name) for name in names}
        return {name for name, unit in units.items() if not unit or self.seal_of(unit) in names}


class _Stamp(NamedTuple):
    size: int
    changed: int  # nanoseconds since 1970


class Mirror:
    """Uploads a folder to a bucket, while the block runs and at its end.

    Args:
      folder: the working copy. Entering downloads what it lacks.
      pins: a folder on the same disk, which must not exist.

    Raises:
      UserError: from entering: the bucket cannot be read. From leaving: files could not be
        uploaded, or another process has taken the lease over.
    """

    def __init__(
        self, bucket: Bucket, folder: Path, pins: Path, layout: MirrorLayout, lease: Lease
    ):
        self._bucket = bucket
        self._folder = folder
        self._pins = pins
        self._layout = layout
        self._lease = lease
        self._uploaded: dict[str, _Stamp] = {}  # stamps here of the files in the bucket
        self._upload_times: dict[str, float] = {}
        self._damaged: dict[str, _Stamp] = {}  # seals of units that are not uploaded
        self._stop = threading.Event()
        self._lost: LeaseLostError | None = None
        self._warned = -float(_WARNING_SECONDS)
        self._upload_thread = threading.Thread(
            target=self._upload_repeatedly, daemon=True, name="mirror"
        )

    def __enter__(self) -> Self:
        self._download()
        self._upload_thread.start()
        return self

    def __exit__(self, _: object, raised: BaseException | None, *__: object) -> None:
        self._stop.set()
        self._upload_thread.join()
        try:
            if self._lost:
                raise self._lost
            self._upload_changes(at_end=True)
            self._upload_lost()
        except UserError as error:
            cause = f"{raised}; " if isinstance(raised, UserError) else ""
            raise UserError(
                f"{cause}{error}; what this run has written is in {self._folder}"
            ) from error

    def _download(self) -> None:
        """Downloads files that the folder lacks and units that are damaged in it."""
        remote = {
            name: entry
            for name, entry in self._bucket.entries().items()
            if not name.startswith(f"{LEASE_FOLDER}/")
        }
        complete = self._layout.complete(remote)
        local = self._files()
        units = {self._layout.unit_of(name) for name in complete | local.keys()}
        for unit in filter(None, units):
            if self._layout.damage(self._folder / unit) is None:
                continue
            if self._layout.seal_of(unit) in complete:
                remove(path_below(self._folder, unit))
            else:
                self._damaged[unit] = local[self._layout.seal_of(unit)]
        lacking = complete - self._files().keys()
        download_files(self._bucket, self._folder, lacking, self._layout.is_seal)
        for name, stamp in self._files().items():
            # Units are intact here and do not grow: files of equal size are equal.
            large = stamp.size >= _SMALL and self._layout.unit_of(name) is not None
            same_size = name in remote and remote[name].size == stamp.size
            if same_size and (name in lacking or large):
                self._uploaded[name] = stamp

    def _upload_repeatedly(self) -> None:
        while not self._stop.wait(SCAN_SECONDS):
            try:
                self._upload_changes()
            except LeaseLostError as error:
                self._lost = error
                logger.warning("%s; this run stops", error)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            except (BucketError, OSError) as error:
                if time.monotonic() > self._warned + _WARNING_SECONDS:
                    self._warned = time.monotonic()
                    logger.warning("%s; training continues, and the upload is repeated", error)

    def _upload_changes(self, at_end: bool = False) -> None:
        """Uploads files that have changed; `at_end`: also growing files that were just uploaded.

        A unit that is found here is uploaded completely, even if it is deleted meanwhile. A run
        that saves faster than the network transfers would otherwise never have a whole checkpoint
        in the bucket.
        """
        layout = self._layout
        stamps = self._files()
        gone = self._uploaded.keys() - stamps.keys()
        changed = {name for name, stamp in stamps.items() if self._uploaded.get(name) != stamp}
        plain = {name for name in changed if layout.unit_of(name) is None}
        touched = {layout.unit_of(name) for name in (changed | gone) - plain}
        units = [unit for unit in touched if unit and layout.seal_of(unit) in stamps]
        gone = {name for name in gone if layout.unit_of(name) not in units}
        if not at_end and not units:  # with a new checkpoint, the records are uploaded at once
            now = time.monotonic()
            pause = GROWING_FILE_SECONDS
            plain = {name for name in plain if now > self._upload_times.get(name, -pause) + pause}
        if not (gone or plain or units):
            return
        self._lease.require()
        units.sort(key=lambda unit: -stamps[layout.seal_of(unit)].changed)  # newest first
        with self._pinned(units, stamps) as pinned:
            marks = {name for name in plain if layout.mark.search(name)}
            run_in_parallel(functools.partial(self._upload, stamps, pinned), marks)
            run_in_parallel(functools.partial(self._upload, stamps, pinned), plain - marks)
            for unit in units:  # the newest even if it has been deleted meanwhile
                if unit == units[0] or (self._folder / unit).exists():
                    self._upload_unit(unit, stamps, pinned)
        self._delete_gone(gone)

    @contextlib.contextmanager
    def _pinned(self, units: list[str], stamps: dict[str, _Stamp]) -> Iterator[dict[str, Path]]:
        """Hard links to the files of units, which outlive a deletion of the files."""
        pinned = {}
        try:
            for name in stamps:
                if self._layout.unit_of(name) in units:
                    pinned[name] = self._pins / name
                    pinned[name].parent.mkdir(parents=True, exist_ok=True)
                    try:
                        pinned[name].hardlink_to(self._folder / name)
                    except OSError:  # already deleted, or the disk has no hard links
                        pinned[name] = self._folder / name
            yield pinned
        finally:
            remove(self._pins)

    def _upload_unit(self, unit: str, stamps: dict[str, _Stamp], pinned: dict[str, Path]) -> None:
        layout = self._layout
        seal = layout.seal_of(unit)
        members = {name for name in stamps if layout.unit_of(name) == unit} - {seal}
        try:
            listed = layout.members(pinned[seal].parent)
        except (OSError, ValueError):
            return  # deleted meanwhile, or damaged
        if not {f"{unit}/{name}" for name in listed} <= members:
            return  # the unit is being deleted or rewritten
        changed = {name for name in members if self._uploaded.get(name) != stamps[name]}
        uploaded = {name for name in self._uploaded if layout.unit_of(name) == unit} - {seal}
        if uploaded - (members - changed):  # the seal in the bucket will no longer be right
            self._delete({seal} & self._uploaded.keys())
        run_in_parallel(functools.partial(self._upload, stamps, pinned), changed)
        self._delete(uploaded - members)
        for _ in range(_TRIES):
            remote = self._bucket.entries(unit)
            lost = [n for n in members if n not in remote or remote[n].size != stamps[n].size]
            if not lost:
                self._upload(stamps, pinned, seal)
                return
            if not all(pinned[name].exists() for name in lost):
                return  # deleted meanwhile
            run_in_parallel(functools.partial(self._upload, stamps, pinned), lost)
        raise BucketError(f"{self._bucket.address}/{lost[0]} was written, but is not there")

    def _delete_gone(self, gone: Collection[str]) -> None:
        """Deletes files that are gone here, seals first; the last unit in the bucket stays."""
        seals = {name for name in self._uploaded if self._layout.is_seal(name)}
        if seals and not seals - set(gone):
            gone = {name for name in gone if self._layout.unit_of(name) is None}
        self._delete({name for name in gone if self._layout.is_seal(name)})
        self._delete({name for name in gone if name in self._uploaded})

    def _delete(self, names: Collection[str]) -> None:
        run_in_parallel(self._bucket.delete, names)
        for name in names:
            self._uploaded.pop(name, None)

    def _upload(self, stamps: dict[str, _Stamp], pinned: dict[str, Path], name: str) -> None:
        path = pinned.get(name, self._folder / name)
        try:
            if name in pinned and stamps[name].size >= _SMALL:
                self._bucket.upload(path, name)
            else:  # the file may grow while it is read
                self._bucket.write(name, path.read_bytes())
        except (BucketError, OSError):
            if path.exists():
                raise
            return  # deleted meanwhile
        self._uploaded[name] = stamps[name]
        self._upload_times[name] = time.monotonic()

    def _upload_lost(self) -> None:
        """Uploads again what the bucket has lost, after the last change here."""
        for _ in range(_TRIES):
            stamps = self._files()
            remote = self._bucket.entries()
            lost = [n for n in stamps if n not in remote or remote[n].size != stamps[n].size]
            if not lost:
                return
            for name in lost:
                self._uploaded.pop(name, None)
            self._upload_changes(at_end=True)
        raise BucketError(f"{self._bucket.address}/{lost[0]} was written, but is not there")

    def _files(self) -> dict[str, _Stamp]:
        """Complete regular files of the folder, without those of damaged units."""
        stamps = {}
        for entry in entries_below(self._folder):
            try:
                status = entry.stat(follow_symlinks=False)
                if entry.is_file(follow_symlinks=False):
                    name = Path(entry.path).relative_to(self._folder).as_posix()
                    stamps[name] = _Stamp(status.st_size, status.st_mtime_ns)
            except FileNotFoundError:
                continue  # deleted meanwhile
        damaged = {
            unit
            for unit, stamp in self._damaged.items()
            if stamps.get(self._layout.seal_of(unit)) == stamp
        }
        complete = self._layout.complete(stamps)
        return {
            name: stamps[name] for name in complete if self._layout.unit_of(name) not in damaged
        }
