"""Objects for other processes, with their arrays in a file that all of them map."""

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


class Stored(NamedTuple):
    """An object in a `SharedFile`: itself pickled, and the places of its arrays in the file."""

    pickled: bytes
    places: list[tuple[int, int]]


class SharedFile:
    """A file without a name, which processes share by its descriptor.

    It can be pickled for processes of `multiprocessing`, and for no other place. It is gone with
    the last of them, whatever ended them.

    Args:
      file: open for reading and writing.
    """

    def __init__(self, file: BinaryIO):
        self._file = file

    @classmethod
    def on_disk(cls) -> "SharedFile":
        """A temporary file, empty."""
        return cls(tempfile.TemporaryFile())

    @classmethod
    def in_memory(cls, size: int) -> "SharedFile":
        """A file of so many bytes that takes memory as it is written to, and no room in /dev/shm,
        which is small in containers; where the system has none of these, on disk."""
        if not hasattr(os, "memfd_create"):
            shared = cls.on_disk()
        else:
            shared = cls(os.fdopen(os.memfd_create("shared"), "r+b"))
        shared._file.truncate(size)
        return shared

    @property
    def size(self) -> int:
        """Bytes."""
        return os.fstat(self._file.fileno()).st_size

    def dump(self, value: Any, start: int = 0) -> Stored:
        """Stores an object as it is now.

        Args:
          value: which arrays go to the file; the rest is in what is returned.
          start: where in the file the arrays begin; what lay there is overwritten.

        Raises:
          OSError: the file cannot be written.
        """
        places: list[tuple[int, int]] = []

        def write(array: pickle.PickleBuffer) -> None:
            content = array.raw()
            end = places[-1][1] if places else start
            first = -(-end // _ALIGNMENT) * _ALIGNMENT
            self._file.seek(first)
            places.append((first, first + self._file.write(content)))

        for module in [*sys.modules.values()]:
            if getattr(module, "__spec__", module) is None:  # no other process can import it
                cloudpickle.register_pickle_by_value(module)
        pickled = cloudpickle.dumps(value, protocol=5, buffer_callback=write)
        self._file.flush()
        return Stored(pickled, places)

    def load(self, stored: Stored) -> Any:
        """A new object; its arrays are read-only and what the file holds at any time."""
        arrays = [self._content[start:stop] for start, stop in stored.places]
        return pickle.loads(stored.pickled, buffers=arrays)

    @cached_property
    def _content(self) -> memoryview:
        if not self.size:
            return memoryview(b"")  # which cannot be mapped
        return memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))

    def __getstate__(self) -> dict[str, Any]:
        return {"descriptor": reduction.DupFd(self._file.fileno())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._file = os.fdopen(state["descriptor"].detach(), "r+b")
