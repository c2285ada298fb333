"""TensorBoard events of a run."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path

# tensorboardX looks for Google's client of buckets, and where it is installed that costs each start
# a second. Workdirs are directories: as long as nobody else uses it, it may as well not be there.
is_hidden = sys.modules.setdefault("google.cloud.storage", None) is None

from tensorboardX.event_file_writer import EventsWriter  # noqa: E402
from tensorboardX.proto.event_pb2 import Event, SessionLog  # noqa: E402
from tensorboardX.proto.summary_pb2 import Summary  # noqa: E402

if is_hidden:
    del sys.modules["google.cloud.storage"]

FLUSH_SECONDS = 10  # each takes milliseconds of waiting for the disk


class EventFile:
    """Numbers by name and step, in a new file of the folder `directory`.

    TensorBoard then forgets what earlier files of the folder hold beyond `start_step`. Written in
    the caller's thread: a disk without room is the caller's OSError.
    """

    def __init__(self, directory: Path, *, start_step: int):
        directory.mkdir(parents=True, exist_ok=True)
        # A run resumed within the second would otherwise overwrite its first file.
        self._writer = EventsWriter(str(directory / "events"), f".from_step_{start_step}")
        start = SessionLog(status=SessionLog.START)
        self._writer.write_event(
            Event(step=start_step + 1, wall_time=time.time(), session_log=start)
        )
        self._flush()

    def append(self, step: int, numbers: Mapping[str, float], wall_time: float) -> None:
        """Adds the numbers of a step; `wall_time` in seconds since 1970."""
        values = [Summary.Value(tag=name, simple_value=x) for name, x in numbers.items()]
        event = Event(step=step, wall_time=wall_time, summary=Summary(value=values))
        self._writer.write_event(event)
        if time.monotonic() > self._flushed + FLUSH_SECONDS:
            self._flush()

    def close(self) -> None:
        self._writer.close()

    def _flush(self) -> None:
        self._writer.flush()
        self._flushed = time.monotonic()
