# SPDX-License-Identifier: Apache-2.0
"""Mirror: uploads a run's folder to a bucket while the run writes it.

The run can be resumed from the bucket at any moment. The mark of a run is written before its other
files, the records reach at least as far as the newest checkpoint, and the manifest of a checkpoint
is written after its other files and deleted before them.
"""

import contextlib
import functools
import logging
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from transformer_jax.buckets.bucket import Bucket, download_files, run_in_parallel
from transformer_jax.buckets.lease import LEASE_FOLDER, Lease, LeaseLostError
from transformer_jax.errors import UserError
from transformer_jax.runtime.files import entries_below, path_below, remove

logger = logging.getLogger(__name__)

SCAN_SECONDS = 2.0
"""Time between two looks at the folder."""
GROWING_FILE_SECONDS = 30.0
"""Time between two uploads of a file that grows, such as the records."""

_SMALL = 2**16  # bytes: a smaller file is uploaded again rather than compared
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
      damage: describes the damage of a unit on disk; None if it is intact.
      mark: matches names of files that mark a folder as ours. They are uploaded before all others,
        so that a folder in the bucket is never without its mark.
      temporary: matches names of files that will be renamed; they are not uploaded.
    """

    unit: re.Pattern[str]
    seal: str
    damage: Callable[[Path], str | None]
    mark: re.Pattern[str]
    temporary: re.Pattern[str]

    def unit_of(self, name: str) -> str:
        """The unit that a file belongs to; "" if it belongs to none."""
        match = self.unit.match(name)
        return match[0] if match else ""

    def seal_of(self, unit: str) -> str:
        """The name of a unit's seal."""
        return f"{unit}/{self.seal}"

    def is_seal(self, name: str) -> bool:
        """Returns True if a file is the seal of a unit."""
        return name == self.seal_of(self.unit_of(name))

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
      staging: a folder on the same disk, which must not exist.

    Raises:
      UserError: from entering: the bucket cannot be read. From leaving: files could not be
        uploaded, or another process has taken the lease over.
    """

    def __init__(
        self, bucket: Bucket, folder: Path, staging: Path, layout: MirrorLayout, lease: Lease
    ):
        self._bucket = bucket
        self._folder = folder
        self._staging = staging
        self._layout = layout
        self._lease = lease
        self._uploaded: dict[str, _Stamp] = {}  # stamps here of the files in the bucket
        self._upload_times: dict[str, float] = {}
        self._damaged: dict[str, _Stamp] = {}  # seals of units that are not uploaded
        self._stop = threading.Event()
        self._lost: LeaseLostError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="mirror")

    def __enter__(self) -> Self:
        self._download()
        self._thread.start()
        return self

    def __exit__(self, _: object, raised: BaseException | None, *__: object) -> None:
        self._stop.set()
        self._thread.join()
        try:
            if self._lost:
                raise self._lost
            self._upload_changes(at_end=True)
        except UserError as error:
            cause = f"{raised}; " if isinstance(raised, UserError) else ""
            raise UserError(
                f"{cause}{error}; what this run has written is in {self._folder}"
            ) from error

    def _download(self) -> None:
        """Downloads files that the folder lacks and units that are damaged in it."""
        layout = self._layout
        remote = self._bucket.entries()
        names = layout.complete(name for name in remote if not name.startswith(f"{LEASE_FOLDER}/"))
        for name in filter(layout.is_seal, names & self._files().keys()):
            unit = path_below(self._folder, name).parent
            if layout.damage(unit):
                remove(unit)
        lacking = names - self._files().keys()
        download_files(self._bucket, self._folder, lacking, layout.is_seal)
        for name, stamp in self._files().items():
            # Units are intact here and do not grow: files of equal size are equal.
            large = stamp.size >= _SMALL and layout.unit_of(name)
            same_size = name in remote and remote[name].size == stamp.size
            if same_size and (name in lacking or large):
                self._uploaded[name] = stamp

    def _run(self) -> None:
        warned = -float(_WARNING_SECONDS)
        while not self._stop.wait(SCAN_SECONDS):
            try:
                self._upload_changes()
            except LeaseLostError as error:
                self._lost = error
                logger.warning("%s; this run stops", error)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            except (UserError, OSError) as error:
                if time.monotonic() > warned + _WARNING_SECONDS:
                    warned = time.monotonic()
                    logger.warning("%s; training continues, and the upload is repeated", error)

    def _upload_changes(self, at_end: bool = False) -> None:
        """Uploads files that have changed; `at_end`: also growing files that were just uploaded."""
        layout = self._layout
        stamps = self._files()
        changed = {name for name, stamp in stamps.items() if self._uploaded.get(name) != stamp}
        plain = {name for name in changed if not layout.unit_of(name)}
        units = set(map(layout.unit_of, changed - plain))
        seals = {unit: stamps[layout.seal_of(unit)] for unit in units}
        whole = [unit for unit in units if self._damaged.get(unit) != seals[unit]]
        whole.sort(key=lambda unit: -seals[unit].changed)  # newest first
        # A unit that has its seal here is not deleted, although a file of it may be gone.
        gone = self._uploaded.keys() - stamps.keys()
        gone = {name for name in gone if layout.seal_of(layout.unit_of(name)) not in stamps}
        if not at_end and not whole:  # with a new checkpoint, the records are uploaded at once
            now = time.monotonic()
            pause = GROWING_FILE_SECONDS
            plain = {name for name in plain if now > self._upload_times.get(name, -pause) + pause}
        if not (gone or plain or whole):
            return
        self._lease.require()
        try:
            # A run that saves faster than the network transfers deletes units during their upload.
            for name in stamps:
                if layout.unit_of(name) in whole:
                    _link(self._folder / name, self._staging / name)
            marks = {name for name in plain if layout.mark.search(name)}
            run_in_parallel(functools.partial(self._upload, stamps), marks)
            run_in_parallel(functools.partial(self._upload, stamps), plain - marks)
            for unit in whole:  # the newest even if it has been deleted meanwhile
                if unit == whole[0] or (self._folder / unit).exists():
                    self._upload_unit(unit, stamps)
        finally:
            remove(self._staging)
        self._delete_gone(gone)

    def _upload_unit(self, unit: str, stamps: dict[str, _Stamp]) -> None:
        layout = self._layout
        seal = layout.seal_of(unit)
        if layout.damage(self._staging / unit):  # or it is just being deleted
            self._damaged[unit] = stamps[seal]
            return
        members = {name for name in stamps if layout.unit_of(name) == unit} - {seal}
        changed = {name for name in members if self._uploaded.get(name) != stamps[name]}
        if changed & self._uploaded.keys():  # the seal in the bucket will no longer be right
            self._delete({seal})
        run_in_parallel(functools.partial(self._upload, stamps), changed)
        self._upload(stamps, seal)

    def _delete_gone(self, gone: Collection[str]) -> None:
        """Deletes files that are gone here, seals first; the last unit in the bucket stays."""
        seals = set(filter(self._layout.is_seal, self._uploaded))
        if seals <= set(gone):
            gone = {name for name in gone if not self._layout.unit_of(name)}
        self._delete(seals.intersection(gone))
        self._delete(set(gone) - seals)

    def _delete(self, names: Collection[str]) -> None:
        run_in_parallel(self._bucket.delete, names)
        for name in names:
            self._uploaded.pop(name, None)

    def _upload(self, stamps: dict[str, _Stamp], name: str) -> None:
        if self._layout.unit_of(name):
            self._bucket.upload(self._staging / name, name)
        else:  # the file may grow while it is read, or be deleted
            try:
                content = (self._folder / name).read_bytes()
            except FileNotFoundError:
                return
            self._bucket.write(name, content)
        self._uploaded[name] = stamps[name]
        self._upload_times[name] = time.monotonic()

    def _files(self) -> dict[str, _Stamp]:
        """Complete regular files of the folder."""
        stamps = {}
        for entry in entries_below(self._folder):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                status = entry.stat(follow_symlinks=False)
                if entry.is_file(follow_symlinks=False):
                    name = Path(entry.path).relative_to(self._folder).as_posix()
                    stamps[name] = _Stamp(status.st_size, status.st_mtime_ns)
        return {name: stamps[name] for name in self._layout.complete(stamps)}


def _link(source: Path, target: Path) -> None:
    """Makes a hard link, which outlives a deletion of the source; or a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        pass  # deleted meanwhile
    except OSError:  # the disk has no hard links
        shutil.copyfile(source, target)
