"""Other processes that do some of the work of this one."""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator

from transformer_jax.data.batches.workers import begin
from transformer_jax.runtime.lifeline import Lifeline
from transformer_jax.runtime.shared_file import SharedFile, Stored


@contextlib.contextmanager
def helped(work: Callable[[], object], count: int) -> Iterator[None]:
    """Calls `work` in `count` other processes while the block runs. They end with the block; a
    process that dies is not replaced.

    Args:
      work: stored once for all of them, with its arrays.
      count: of the processes; 0: none.
    """
    if not count:
        yield
        return
    file, lifeline = SharedFile.on_disk(), Lifeline()
    given = (lifeline, file, file.dump(work))
    context = multiprocessing.get_context("spawn")  # a fork would copy the locks of JAX's threads
    processes = [context.Process(target=_help, args=given, daemon=True) for _ in range(count)]
    try:
        for process in processes:
            process.start()
        yield
    finally:
        lifeline.cut()
        for process in processes:
            if process.pid is not None:
                process.join()


def _help(lifeline: Lifeline, file: SharedFile, stored: Stored) -> None:
    begin(lifeline)
    file.load(stored)()
