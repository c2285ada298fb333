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
from functools import partial
from itertools import chain
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, BinaryIO

import cloudpickle
import jax

from transformer_jax.data.batches.packing import Packer, StreamGroups, pack_streams
from transformer_jax.errors import UserError

_SPAWN = multiprocessing.get_context("spawn")
_ALIGNMENT = 64  # bytes: of any dtype, and a line of the processor's cache


class SharedObject:
    """An object whose arrays processes share in a file without a name.

    It can be pickled only for processes of `multiprocessing`. The system deletes the file when the
    last of them ends, however that ends.

    Raises:
      OSError: the file cannot be written.
    """

    def __init__(self, value: Any):
        self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 (as long as this object)
        self._places: list[tuple[int, int]] = []  # start and stop of each array, in bytes
        unknown = {
            module.__name__: module
            for module in [*sys.modules.values()]
            if getattr(module, "__spec__", module) is None
        }
        for module in unknown.values():  # no other process can import it
            cloudpickle.register_pickle_by_value(module)
        try:
            self._pickled = cloudpickle.dumps(value, protocol=5, buffer_callback=self._write)
        finally:
            for module in unknown.values():
                cloudpickle.unregister_pickle_by_value(module)
        self._file.flush()

    def _write(self, array: pickle.PickleBuffer) -> None:
        start = -(-self._file.tell() // _ALIGNMENT) * _ALIGNMENT  # rounded up
        self._file.seek(start)
        self._places.append((start, start + self._file.write(array.raw())))

    def load(self) -> Any:
        """Loads the object. Its arrays are read-only views of the file."""
        content = memoryview(b"")
        if self._places and self._places[-1][1]:  # an empty file cannot be mapped
            content = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        arrays = [content[start:stop] for start, stop in self._places]
        return pickle.loads(self._pickled, buffers=arrays)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_file": reduction.DupFd(self._file.fileno())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._file = os.fdopen(state["_file"].detach(), "rb")


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
        self._work = SharedObject(partial(_pack, dict(streams)))
        self._processes: list[BaseProcess] = []

    def pack(self, starts: Mapping[str, int]) -> Generator[StreamGroups]:
        """Packs like `pack_streams`. The processes end when the generator is closed.

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
        ours, theirs = _SPAWN.Pipe()
        with theirs:  # closed here, so that `ours` ends with the process
            process = _start(self._work, starts, theirs)
        self._processes.append(process)
        return _take(process, ours)


def _take(process: BaseProcess, connection: Connection) -> Iterator[StreamGroups]:
    """Groups of a worker process, which packs the next ones meanwhile."""
    while True:
        try:
            result = connection.recv()
        except (EOFError, OSError) as error:
            raise UserError(
                f"a data worker was killed (process {process.pid}): is memory short? Lower "
                "data.num_workers; the same command continues"
            ) from error
        if isinstance(result, Exception):
            raise result
        yield result


def _pack(streams: Mapping[str, Packer], starts: Mapping[str, int], connection: Connection) -> None:
    """Packs some of the streams in a worker process, and sends the groups."""
    try:
        for groups in pack_streams({i: streams[i] for i in starts}, starts):
            connection.send(groups)
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
            shared = SharedObject(work)
            for _ in range(count):
                processes.append(_start(shared))
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


def _start(work: SharedObject, *args: Any) -> BaseProcess:
    """Calls a shared function in a new process."""
    process = _SPAWN.Process(target=_run, args=(work, *args), daemon=True)
    process.start()
    return process


def _run(work: SharedObject, *args: Any) -> None:
    # The process ends with its parent, and not by signals to the process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_exit_after_parent, daemon=True).start()
    jax.config.update("jax_platforms", "cpu")
    work.load()(*args)


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)
