"""TensorBoard events of a run."""

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary


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
        self._write(Event(step=start_step + 1, wall_time=time.time(), session_log=start))

    def append(self, step: int, numbers: Mapping[str, float], wall_time: float) -> None:
        """Adds the numbers of a step; `wall_time` in seconds since 1970."""
        values = [Summary.Value(tag=name, simple_value=x) for name, x in numbers.items()]
        self._write(Event(step=step, wall_time=wall_time, summary=Summary(value=values)))

    def close(self) -> None:
        self._writer.close()

    def _write(self, event: Event) -> None:
        self._writer.write_event(event)
        self._writer.flush()
