# SPDX-License-Identifier: Apache-2.0
"""Experiment trackers, which receive the records of a run beside metrics.jsonl."""

import contextlib
import dataclasses
import importlib.util
import json
import logging
import math
import os
import queue
import re
import socket
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from transformer_jax.errors import UserError, install_hint, reason_of
from transformer_jax.registry import Registry
from transformer_jax.runtime.files import read_regular, write_atomic

logger = logging.getLogger(__name__)

FOLDER = "trackers"
"""Folder of a workdir with the id that each tracker has given the run."""

_MOST_WAITING = 1000
"""Records that wait for a slow tracker; further ones are dropped."""
_SECONDS_TO_CLOSE = 30.0
FLUSH_SECONDS = 10  # a flush takes milliseconds

_LARGEST_FLOAT = (2 - 2**-23) * 2.0**127


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """A run, as trackers see it.

    Attributes:
      workdir: workdir of the run.
      start_step: step where the run resumes, 0 for a new one.
      project: project, or experiment, that the run belongs to.
      logging: section `logging` of the config.
    """

    workdir: Path
    start_step: int
    project: str
    logging: Any

    @property
    def config(self) -> dict[str, Any]:
        """Config of the run, {section: {field: value}}."""
        path = self.workdir / "config.json"
        return json.loads(read_regular(path)) if path.exists() else {}

    def stored_id(self, tracker: str, make: Callable[[], str]) -> str:
        """Id of the run in a tracker: made once, and kept in the workdir, so that a resumed run
        continues in the tracker."""
        path = self.workdir / FOLDER / tracker
        former = self.workdir / tracker / "run_id"  # where earlier versions kept it
        for file in (path, former):
            if file.exists():
                return read_regular(file).decode()
        path.parent.mkdir(exist_ok=True)
        run_id = make()
        write_atomic(path, run_id)
        return run_id


class Tracker:
    """Receives the records of one run; an entry of `TRACKERS`.

    A thread of its own makes, calls and closes it: it may be slow, and it may fail. A failure is
    logged once; training continues.

    Attributes:
      package: package that it needs, which is also the extra of pyproject.toml; None: none.
      reads: fields of the config that only this tracker and its like read.
    """

    package: ClassVar[str | None] = None
    reads: ClassVar[tuple[str, ...]] = ()

    def __init__(self, run: TrackedRun) -> None:
        self.run = run

    def log(self, step: int, metrics: Mapping[str, float], time: float) -> None:
        """Receives the metrics of a step by name, "train/loss"; `time` is in seconds since 1970."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the tracking, at the end of training or when it stops."""


class TensorBoard(Tracker):
    """A new event file in the folder `tensorboard` of the workdir.

    It is a sequence of records: length (uint64), checksum of the length, data, checksum of the data
    (all little endian). The data is an `Event`, a protocol buffer. Only these fields are written:

        Event    { double wall_time = 1; int64 step = 2; string file_version = 3;
                   Summary summary = 5; SessionLog session_log = 7 }
        Summary  { repeated Value value = 1 }     Value { string tag = 1; float simple_value = 2 }
        SessionLog { Status status = 1 }          Status { START = 1 }

    `tensorboardX` is not used because its import takes a sixth of a second, and another second if
    Google's client of buckets is installed. TensorBoard hides events after the step where a run
    resumes in earlier files of the folder.
    """

    def __init__(self, run: TrackedRun) -> None:
        directory = run.workdir / "tensorboard"
        directory.mkdir(parents=True, exist_ok=True)
        now = time.time()
        # The name has the step, so that a run resumed within a second gets a new file.
        name = f"events.out.tfevents.{now:010.0f}.{socket.gethostname()}.from_step_{run.start_step}"
        (directory / name).unlink(missing_ok=True)
        self._file = (directory / name).open("xb")  # x: does not follow a link
        self._write(_double(1, now) + _bytes(3, b"brain.Event:2"))
        session_log = _varint(1, 1)  # Status.START
        self._write(_double(1, now) + _varint(2, run.start_step + 1) + _bytes(7, session_log))
        self._flushed = -math.inf
        self._flush()

    def log(self, step: int, metrics: Mapping[str, float], time: float) -> None:
        values = [_bytes(1, tag.encode()) + _float(2, number) for tag, number in metrics.items()]
        summary = b"".join(_bytes(1, value) for value in values)
        self._write(_double(1, time) + _varint(2, step) + _bytes(5, summary))
        self._flush(FLUSH_SECONDS)

    def close(self) -> None:
        self._flush()
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))

    def _flush(self, seconds: float = 0.0) -> None:
        """Flushes to the disk unless it has done so less than `seconds` ago."""
        if time.monotonic() >= self._flushed + seconds:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._flushed = time.monotonic()


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases."""

    package = "wandb"
    reads = ("logging.project",)

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._run = wandb.init(
            project=run.project,
            name=run.workdir.name,
            id=run.stored_id("wandb", lambda: uuid.uuid4().hex),
            resume="allow",
            dir=run.workdir,
            config=run.config,
            # Several runs are trained together; and no thread should wait for a key to be typed.
            settings=wandb.Settings(reinit="create_new", login_timeout=30),
        )
        # wandb's own step only grows: after a rewind it would drop the records of repeated steps.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float], time: float) -> None:
        self._run.log({**metrics, "step": step})

    def close(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """A run of MLflow, at $MLFLOW_TRACKING_URI or where MLflow stores runs by default."""

    package = "mlflow"
    reads = ("logging.project",)

    def __init__(self, run: TrackedRun) -> None:
        import mlflow

        self._client = mlflow.MlflowClient()
        self._entities = mlflow.entities
        self._id = run.stored_id("mlflow", lambda: self._create(run))
        self._client.update_run(self._id, status="RUNNING")

    def _create(self, run: TrackedRun) -> str:
        existing = self._client.get_experiment_by_name(run.project)
        if existing:
            experiment = existing.experiment_id
        else:
            experiment = self._client.create_experiment(run.project)
        run_id = self._client.create_run(experiment, run_name=run.workdir.name).info.run_id
        for section, fields in run.config.items():
            fields = fields if isinstance(fields, dict) else {"": fields}
            names = {f"{section}.{name}".rstrip("."): value for name, value in fields.items()}
            params = [self._entities.Param(name, str(value)) for name, value in names.items()]
            self._client.log_batch(run_id, params=params)
        return run_id

    def log(self, step: int, metrics: Mapping[str, float], time: float) -> None:
        named = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in metrics.items()}
        ms = round(1e3 * time)
        rows = [self._entities.Metric(name, value, ms, step) for name, value in named.items()]
        self._client.log_batch(self._id, metrics=rows)

    def close(self) -> None:
        self._client.set_terminated(self._id)


class Trackio(Tracker):
    """A run of Trackio, in $TRACKIO_DIR or where Trackio stores runs by default."""

    package = "trackio"
    reads = ("logging.project",)

    def __init__(self, run: TrackedRun) -> None:
        with contextlib.redirect_stdout(sys.stderr):  # it prints, and stdout is for results
            import trackio

            # A run is found again by its name, which other runs of the project must not have.
            name = run.stored_id("trackio", lambda: f"{run.workdir.name}-{uuid.uuid4().hex[:8]}")
            self._run = trackio.init(
                run.project, name, config=run.config, resume="allow", embed=False
            )

    def log(self, step: int, metrics: Mapping[str, float], time: float) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self._run.finish()


TRACKERS: Registry[type[Tracker]] = Registry(
    "logging.trackers",
    {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow, "trackio": Trackio},
    several=True,
)


class TrackerThread:
    """Passes records to a tracker in a thread, so that training never waits for it.

    Args:
      name: entry of `TRACKERS`.

    Raises:
      UserError: the package of the tracker is not installed.
    """

    def __init__(self, name: str, run: TrackedRun) -> None:
        package = TRACKERS[name].package
        if package and importlib.util.find_spec(package) is None:
            raise UserError(
                f"logging.trackers: the package {package} is not installed: "
                f"{install_hint(package)}; or leave {name} out"
            )
        self._name = name
        self._run = run
        self._is_told = False
        self._records: queue.Queue[Any] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._track, name=name, daemon=True)
        self._thread.start()

    def put(self, step: int, metrics: Mapping[str, float], time: float) -> None:
        """Passes on the metrics of a step; returns at once."""
        if not self._thread.is_alive():
            return
        try:
            self._records.put_nowait((step, metrics, time))
        except queue.Full:
            self._tell(f"is {_MOST_WAITING} records behind and misses the next ones")

    def close(self) -> None:
        """Waits until the tracker has all records, but not long."""
        end = time.monotonic() + _SECONDS_TO_CLOSE
        with contextlib.suppress(queue.Full):
            self._records.put(None, timeout=_SECONDS_TO_CLOSE)
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            self._tell(
                f"did not end within {_SECONDS_TO_CLOSE:.0f} s and may lose its last records"
            )

    def _track(self) -> None:
        try:
            tracker = TRACKERS.find(self._name)(self._run)
            for record in iter(self._records.get, None):  # None is from `close`
                try:
                    tracker.log(*record)
                except Exception as error:
                    self._tell(f"lost a record: {type(error).__name__}: {reason_of(error)}")
            tracker.close()
        except Exception as error:
            self._tell(f"failed: {type(error).__name__}: {reason_of(error)}")

    def _tell(self, problem: str) -> None:
        """Logs the first problem."""
        if not self._is_told:
            self._is_told = True
            logger.warning("tracker %s %s; training continues", self._name, problem)


# Fields of protocol buffers begin with their number and the type of what follows: an integer (0), a
# double (1), bytes with their length (2) or a float (5).


def _varint(field: int, value: int) -> bytes:
    return bytes([field << 3]) + _base_128(value)


def _double(field: int, value: float) -> bytes:
    return struct.pack("<Bd", field << 3 | 1, value)


def _float(field: int, value: float) -> bytes:
    if abs(value) > _LARGEST_FLOAT:  # struct would raise an OverflowError
        value = math.copysign(math.inf, value)
    return struct.pack("<Bf", field << 3 | 5, value)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _base_128(len(value)) + value


def _base_128(value: int) -> bytes:
    """Encodes an integer with seven bits per byte, lowest first; the high bit marks that more bytes
    follow."""
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _crc_table() -> Iterator[int]:
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        yield crc


_CRC_TABLE = tuple(_crc_table())


def _checksum(data: bytes) -> bytes:
    """CRC-32C (RFC 3309), masked as in TensorFlow's records."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    masked = (crc >> 15 | crc << 17) + 0xA282EAD8
    return struct.pack("<I", masked & 0xFFFFFFFF)
