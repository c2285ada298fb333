# SPDX-License-Identifier: Apache-2.0
"""Objects shared between processes: their arrays are in a file that all processes map."""

import mmap
import os
import pickle
import sys
import tempfile
from functools import cached_property
from multiprocessing import reduction
from typing import Any, BinaryIO, NamedTuple

import cloudpickle

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
