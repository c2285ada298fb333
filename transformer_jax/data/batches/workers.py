# SPDX-License-Identifier: Apache-2.0
"""Worker processes: those that tokenize and pack training batches, and helpers of the token cache.

Processes are spawned, since a fork would copy the locks that JAX's threads hold. They end with the
process that started them.
"""

import contextlib
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cached_property, partial
from itertools import chain
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, BinaryIO, NamedTuple

import cloudpickle
import jax

from transformer_jax.data.batches.packing import Packer, StreamGroups, pack_streams
from transformer_jax.errors import UserError

_SPAWN = multiprocessing.get_context("spawn")
_SLOTS = 4
"""Results of a worker that have room in its memory; the parent reads one of them."""
_ALIGNMENT = 64  # bytes: of any dtype, and a line of the processor's cache


class SharedObject(NamedTuple):
    """Handle of an object in a `SharedFile`.

    Attributes:
      pickled: the object without its arrays.
      places: (start, stop) of each array in the file, in bytes.
    """

    pickled: bytes
    places: list[tuple[int, int]]


class SharedFile:
    """A file without a name, which processes share by its descriptor.

    It can be pickled only for processes of `multiprocessing`. The system deletes it when the last
    of them ends, however that ends.

    Args:
      file: open for reading and writing.
    """

    def __init__(self, file: BinaryIO):
        self._file = file

    @classmethod
    def on_disk(cls) -> "SharedFile":
        """Creates an empty temporary file."""
        return cls(tempfile.TemporaryFile())

    @classmethod
    def in_memory(cls, size: int) -> "SharedFile":
        """Creates a file of `size` bytes in memory, which it takes only when it is written to.

        It takes no room in /dev/shm, which is small in containers. On disk if the system has no
        such files.
        """
        if not hasattr(os, "memfd_create"):
            shared = cls.on_disk()
        else:
            shared = cls(os.fdopen(os.memfd_create("shared"), "r+b"))
        shared._file.truncate(size)
        return shared

    @property
    def size(self) -> int:
        """Size in bytes."""
        return os.fstat(self._file.fileno()).st_size

    def dump(self, value: Any, start: int = 0) -> SharedObject:
        """Writes the arrays of an object to the file; returns a handle with the rest of it.

        Args:
          start: offset in the file where the arrays begin; they overwrite its content.

        Raises:
          OSError: the file cannot be written.
        """
        places: list[tuple[int, int]] = []

        def write(array: pickle.PickleBuffer) -> None:
            content = array.raw()
            end = places[-1][1] if places else start
            first = -(-end // _ALIGNMENT) * _ALIGNMENT  # rounded up
            self._file.seek(first)
            places.append((first, first + self._file.write(content)))

        unknown = {
            module.__name__: module
            for module in [*sys.modules.values()]
            if getattr(module, "__spec__", module) is None
        }
        with contextlib.ExitStack() as stack:
            for module in unknown.values():  # no other process can import it
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
            pickled = cloudpickle.dumps(value, protocol=5, buffer_callback=write)
        self._file.flush()
        return SharedObject(pickled, places)

    def load(self, stored: SharedObject) -> Any:
        """Loads an object. Its arrays are read-only views of the file: they change with it."""
        arrays = [self._content[start:stop] for start, stop in stored.places]
        return pickle.loads(stored.pickled, buffers=arrays)

    @cached_property
    def _content(self) -> memoryview:
        if not self.size:
            return memoryview(b"")  # an empty file cannot be mapped
        return memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))

    def __getstate__(self) -> dict[str, Any]:
        return {"descriptor": reduction.DupFd(self._file.fileno())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._file = os.fdopen(state["descriptor"].detach(), "r+b")


class PackingWorkers:
    """Worker processes that pack streams.

    Each process packs some of the streams on its own, so the result does not depend on the number
    of processes.

    Args:
      streams: the streams by number; stored once for all processes.
      count: number of processes.
    """

    def __init__(self, streams: Mapping[str, Packer], count: int):
        self._numbers = list(streams)
        self._parts = [self._numbers[i::count] for i in range(min(count, len(streams)))]
        self._num_bytes = max(stream.num_bytes for stream in streams.values())
        self._file = SharedFile.on_disk()
        self._work = self._file.dump(partial(_pack, dict(streams)))
        self._processes: list[BaseProcess] = []

    def pack(self, starts: Mapping[str, int]) -> Generator[StreamGroups]:
        """Packs like `pack_streams`; the arrays of a result are valid until the next one is taken.

        The processes end when the generator is closed.

        Raises:
          UserError: a process was killed, or an error of `pack_streams`.
        """
        with _ended(self._processes):
            parts = [self._start({i: starts[i] for i in part}) for part in self._parts]
            while True:
                groups = dict(chain.from_iterable(next(part).items() for part in parts))
                yield {i: groups[i] for i in self._numbers}  # in the order of `streams`

    def stop(self) -> None:
        """Ends the processes; a thread that waits for a result gets an error."""
        for process in self._processes:
            process.kill()

    def _start(self, starts: Mapping[str, int]) -> Iterator[StreamGroups]:
        memory = SharedFile.in_memory(_SLOTS * self._num_bytes * len(starts))
        ours, theirs = _SPAWN.Pipe()
        with theirs:  # closed here, so that `ours` ends with the process
            process = _start(self._file, self._work, starts, memory, theirs)
        self._processes.append(process)
        return _take(process, memory, ours)


def _take(
    process: BaseProcess, memory: SharedFile, connection: Connection
) -> Iterator[StreamGroups]:
    """Groups of a worker process, in memory that it writes to again."""
    while True:
        try:
            result = connection.recv()
        except (EOFError, ConnectionError) as error:
            raise UserError(
                f"a data worker was killed (process {process.pid}): is memory short? Lower "
                "data.num_workers; the same command continues"
            ) from error
        if isinstance(result, Exception):
            raise result
        yield memory.load(result)
        with contextlib.suppress(ConnectionError):  # of a killed one; `recv` says so
            connection.send(None)  # its memory may be overwritten


def _pack(
    streams: Mapping[str, Packer],
    starts: Mapping[str, int],
    memory: SharedFile,
    connection: Connection,
) -> None:
    """Packs some of the streams in a worker process, and sends handles of the groups."""
    slot_size = memory.size // _SLOTS
    try:
        packed = pack_streams({i: streams[i] for i in starts}, starts)
        for number, groups in enumerate(packed):
            if number >= _SLOTS:
                connection.recv()
            connection.send(memory.dump(groups, start=number % _SLOTS * slot_size))
    except Exception as error:
        with contextlib.suppress(OSError):  # the parent may be gone
            connection.send(_picklable(error))


def _picklable(error: Exception) -> Exception:
    """Returns the error, or a RuntimeError with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextlib.contextmanager
def helper_processes(work: Callable[[], object], count: int) -> Iterator[None]:
    """Calls `work` in `count` other processes while the block runs.

    The processes end with the block. One that dies is not replaced.

    Args:
      work: pickled once for all processes, with its arrays.
      count: number of processes; possibly 0.
    """
    processes: list[BaseProcess] = []
    with _ended(processes):
        if count:
            file = SharedFile.on_disk()
            stored = file.dump(work)
        for _ in range(count):
            processes.append(_start(file, stored))
        yield


@contextlib.contextmanager
def _ended(processes: list[BaseProcess]) -> Iterator[None]:
    """Ends the processes that the block adds to a list, and empties it."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        processes.clear()


def _start(file: SharedFile, work: SharedObject, *args: Any) -> BaseProcess:
    """Calls an object of a file in a new process."""
    process = _SPAWN.Process(target=_run, args=(file, work, *args), daemon=True)
    process.start()
    return process


def _run(file: SharedFile, work: SharedObject, *args: Any) -> None:
    # The process ends with its parent, and not by signals to the process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_exit_after_parent, daemon=True).start()
    jax.config.update("jax_platforms", "cpu")
    file.load(work)(*args)


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)
