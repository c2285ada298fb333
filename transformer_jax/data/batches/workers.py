"""Worker processes that encode and pack, with Grain.

Each packs some of the streams, all by itself, so that what comes out does not depend on the number
of workers. They are spawned, as a fork would copy the locks that JAX's threads hold.
"""

import pickle
import signal
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import grain
import jax
from absl import flags

from transformer_jax.data.batches.packing import Examples, PackedGroup, Packer
from transformer_jax.errors import UserError
from transformer_jax.runtime.processes import Lifeline
from transformer_jax.runtime.shared_arrays import SharedFile, SharedObject

# FOLDED data.batches.rounds: What streams pack, group by group.


Round = Mapping[str, PackedGroup]
"""The next group of each stream, by the stream's number."""


@dataclass(frozen=True)
class Stream:
    """Examples that are packed in groups of rows.

    Attributes:
      examples: an endless sequence.
      packer: of a group.
    """

    examples: Examples
    packer: Packer


def rounds(streams: Mapping[str, Stream], starts: Mapping[str, int]) -> Generator[Round]:
    """Packs without end.

    Args:
      streams: by number.
      starts: the example of each with which its first group starts.
    """
    while True:
        groups = {i: each.packer.pack(each.examples, starts[i]) for i, each in streams.items()}
        starts = {i: group.end for i, group in groups.items()}
        yield groups


_SLOTS = 8
"""Rounds of a worker that have a place of their own in its memory. Five at most are under way: one
is being packed, one waits in Grain's queue, one in its thread and one in that thread's buffer, and
one is being read."""

_DIED = "Worker process was terminated unexpectedly"
"""How Grain's error begins."""


class Workers:
    """Processes that pack streams.

    Args:
      streams: by number; stored here as they are, once for all processes.
      count: of processes; each packs some of the streams.
    """

    def __init__(self, streams: Mapping[str, Stream], count: int):
        self._numbers = list(streams)
        self._parts = [self._numbers[i::count] for i in range(min(count, len(streams)))]
        self._num_bytes = max(each.packer.num_bytes for each in streams.values())
        self._file = SharedFile.on_disk()
        self._streams = self._file.dump(dict(streams))
        self._lifeline = Lifeline()

    def rounds(self, starts: Mapping[str, int]) -> Generator[Round]:
        """As `rounds.rounds`, but the arrays of a round are good until the next one is taken. The
        processes end when the generator is closed.

        Raises:
          UserError: a process was killed; or what `rounds` raises.
        """
        if not flags.FLAGS.is_parsed():  # Grain reads some
            flags.FLAGS.mark_as_parsed()
        self.stop()
        self._lifeline = Lifeline()
        workers = [self._worker({i: starts[i] for i in part}) for part in self._parts]
        with ThreadPoolExecutor(len(workers)) as threads:
            try:
                while True:
                    found = dict(chain.from_iterable(threads.map(_Worker.take, workers)))
                    yield {i: found[i] for i in self._numbers}
            except RuntimeError as error:
                if not str(error).startswith(_DIED):
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
        """Ends the processes; who waits for a round gets an error within a second."""
        self._lifeline.cut()

    def _worker(self, starts: Mapping[str, int]) -> "_Worker":
        memory = SharedFile.in_memory(_SLOTS * self._num_bytes * len(starts))
        packed = _Rounds(self._file, self._streams, starts, memory)
        return _Worker(packed, memory, self._lifeline)


class _Worker:
    """The parent's end of a worker process."""

    def __init__(self, packed: "_Rounds", memory: SharedFile, lifeline: Lifeline):
        alone = grain.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=1)
        self._stored = iter(packed.mp_prefetch(alone, partial(_begin, lifeline)))
        self._memory = memory

    def take(self) -> list[tuple[str, Any]]:
        """The next groups; their arrays lie in the memory that both ends share."""
        return list(self._memory.load(next(self._stored)).items())

    def close(self) -> None:
        """Ends the process where it has not ended, and Grain's thread."""
        self._stored.close()


class _Rounds(grain.IterDataset[SharedObject]):
    """Rounds of some streams, packed by the process that iterates."""

    def __init__(
        self, file: SharedFile, streams: SharedObject, starts: Mapping[str, int], memory: SharedFile
    ):
        super().__init__()
        self._file, self._streams, self._starts, self._memory = file, streams, starts, memory

    def __iter__(self) -> "_RoundsIterator":
        return _RoundsIterator(self._packed())

    def _packed(self) -> Iterator[SharedObject]:
        streams = self._file.load(self._streams)
        size = self._memory.size // _SLOTS
        found = rounds({i: streams[i] for i in self._starts}, self._starts)
        for number, groups in enumerate(found):
            yield self._memory.dump(groups, start=number % _SLOTS * size)


class _RoundsIterator(grain.DatasetIterator[SharedObject]):
    """Without state of its own: who takes the rounds knows where they are."""

    def __init__(self, packed: Iterator[SharedObject]):
        super().__init__()
        self._packed = packed

    def __next__(self) -> SharedObject:
        try:
            return next(self._packed)
        except Exception as error:
            raise _sendable(error) from error

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


def _sendable(error: Exception) -> Exception:
    """The error, or its text where it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _begin(lifeline: Lifeline, index: int, count: int) -> None:
    begin(lifeline)


def begin(lifeline: Lifeline) -> None:
    """Runs first in a worker. Signals that a whole group gets do not end it, its parent does; and
    it leaves accelerators alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    lifeline.exit_when_cut()
    jax.config.update("jax_platforms", "cpu")
