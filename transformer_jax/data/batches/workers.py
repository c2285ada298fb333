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
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import chain
from multiprocessing import reduction
from typing import Any, BinaryIO, NamedTuple

import cloudpickle
import grain
import jax
from absl import flags

from transformer_jax.data.batches.packing import Packer, StreamGroups, pack_streams
from transformer_jax.errors import UserError
from transformer_jax.runtime.processes import Lifeline

_SLOTS = 8
"""Results of a worker that have room in its memory. At most five are in use: one is being packed,
one is in Grain's queue, one in its thread, one in that thread's buffer, and one is being read."""

_ALIGNMENT = 64  # bytes: of any dtype, and a line of the processor's cache

_WORKER_DIED = "Worker process was terminated unexpectedly"
"""Beginning of Grain's error message."""


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

        for module in [*sys.modules.values()]:
            if getattr(module, "__spec__", module) is None:  # no other process can import it
                cloudpickle.register_pickle_by_value(module)
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
    """Worker processes that pack streams, with Grain.

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
        self._streams = self._file.dump(dict(streams))
        self._lifeline = Lifeline()

    def pack(self, starts: Mapping[str, int]) -> Generator[StreamGroups]:
        """Packs like `pack_streams`; the arrays of a result are valid until the next one is taken.

        The processes end when the generator is closed.

        Raises:
          UserError: a process was killed, or an error of `pack_streams`.
        """
        if not flags.FLAGS.is_parsed():  # Grain reads some of the flags
            flags.FLAGS.mark_as_parsed()
        self.stop()
        self._lifeline = Lifeline()
        workers = [self._start({i: starts[i] for i in part}) for part in self._parts]
        with ThreadPoolExecutor(len(workers)) as threads:
            try:
                while True:
                    groups = dict(chain.from_iterable(threads.map(_Worker.take, workers)))
                    yield {i: groups[i] for i in self._numbers}  # in the order of `streams`
            except RuntimeError as error:
                if not str(error).startswith(_WORKER_DIED):
                    raise
                raise UserError(
                    f"a data worker was killed ({str(error).partition('.')[0]}): is memory short? "
                    "Lower data.num_workers; the same command continues"
                ) from error
            finally:
                self.stop()
                for worker in workers:
                    worker.close()

    def stop(self) -> None:
        """Ends the processes; a thread that waits for a result gets an error within a second."""
        self._lifeline.cut()

    def _start(self, starts: Mapping[str, int]) -> "_Worker":
        memory = SharedFile.in_memory(_SLOTS * self._num_bytes * len(starts))
        packed = _PackedStreams(self._file, self._streams, starts, memory)
        return _Worker(packed, memory, self._lifeline)


class _Worker:
    """Connection of the parent to one worker process."""

    def __init__(self, packed: "_PackedStreams", memory: SharedFile, lifeline: Lifeline):
        options = grain.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=1)
        self._stored = iter(packed.mp_prefetch(options, partial(_init_worker, lifeline)))
        self._memory = memory

    def take(self) -> list[tuple[str, Any]]:
        """Next groups; their arrays are in memory shared with the worker."""
        return list(self._memory.load(next(self._stored)).items())

    def close(self) -> None:
        """Ends the process, if it is still running, and Grain's thread."""
        self._stored.close()


class _PackedStreams(grain.IterDataset[SharedObject]):
    """Groups of some streams, packed in the process that iterates."""

    def __init__(
        self, file: SharedFile, streams: SharedObject, starts: Mapping[str, int], memory: SharedFile
    ):
        super().__init__()
        self._file = file
        self._streams = streams
        self._starts = starts
        self._memory = memory

    def __iter__(self) -> "_PackedStreamsIterator":
        return _PackedStreamsIterator(self._pack())

    def _pack(self) -> Iterator[SharedObject]:
        streams = self._file.load(self._streams)
        slot_size = self._memory.size // _SLOTS
        packed = pack_streams({i: streams[i] for i in self._starts}, self._starts)
        for number, groups in enumerate(packed):
            yield self._memory.dump(groups, start=number % _SLOTS * slot_size)


class _PackedStreamsIterator(grain.DatasetIterator[SharedObject]):
    """Iterator without a state, since the parent keeps track of the position."""

    def __init__(self, packed: Iterator[SharedObject]):
        super().__init__()
        self._packed = packed

    def __next__(self) -> SharedObject:
        try:
            return next(self._packed)
        except Exception as error:
            raise _picklable(error) from error

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


def _picklable(error: Exception) -> Exception:
    """Returns the error, or a RuntimeError with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _init_worker(lifeline: Lifeline, index: int, count: int) -> None:
    _init_process(lifeline)


def _init_process(lifeline: Lifeline) -> None:
    """Sets up a new process: it ends with its parent, not by signals to the process group, and does
    not use accelerators."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    lifeline.exit_when_cut()
    jax.config.update("jax_platforms", "cpu")


@contextlib.contextmanager
def helper_processes(work: Callable[[], object], count: int) -> Iterator[None]:
    """Calls `work` in `count` other processes while the block runs.

    The processes end with the block. One that dies is not replaced.

    Args:
      work: pickled once for all processes, with its arrays.
      count: number of processes; possibly 0.
    """
    if not count:
        yield
        return
    file = SharedFile.on_disk()
    lifeline = Lifeline()
    arguments = (lifeline, file, file.dump(work))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_help, args=arguments, daemon=True) for _ in range(count)]
    try:
        for process in processes:
            process.start()
        yield
    finally:
        lifeline.cut()
        for process in processes:
            if process.pid is not None:
                process.join()


def _help(lifeline: Lifeline, file: SharedFile, stored: SharedObject) -> None:
    _init_process(lifeline)
    file.load(stored)()
