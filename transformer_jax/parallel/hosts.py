"""Many processes, one job: how they find each other, exchange messages and stop together.

With a single process these functions exchange nothing. Messages between processes are JSON; arrays
travel within the compiled steps alone.
"""

import contextlib
import dataclasses
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer_jax.errors import UserError

LostProcess = jax.errors.JaxRuntimeError
"""What a step or a message raises if a process that it waits for is lost."""

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Job:
    """How a process finds the others; None is detected (Slurm, Open MPI, Kubernetes, TPU).

    Attributes:
      coordinator: HOST:PORT of process 0.
      num_processes: number of processes of the job.
      process_id: number of this process, from 0.
    """

    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None


def connect(job: Job, heartbeat_seconds: int) -> None:
    """Joins the job; must come before any other use of JAX.

    Args:
      job: how to find it.
      heartbeat_seconds: a process silent for longer counts as lost.

    Raises:
      UserError: the others cannot be found, or the fields of `job` do not fit together.
    """
    try:
        jax.distributed.initialize(
            job.coordinator,
            job.num_processes,
            job.process_id,
            heartbeat_timeout_seconds=heartbeat_seconds,
        )
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"--distributed: {reason} Where no scheduler says so, give --coordinator=HOST:PORT, "
            "--num_processes and --process_id"
        ) from error
    if is_primary():
        logger.info("%d processes, %d devices", jax.process_count(), jax.device_count())
    else:
        logging.getLogger("transformer_jax").setLevel(logging.WARNING)


def is_primary() -> bool:
    """Whether this is the process that writes files and metrics."""
    return jax.process_index() == 0


def from_primary(make: Callable[[], Any]) -> Any:
    """Runs `make` in process 0 alone and returns its value, which JSON must hold, in all.

    Raises:
      UserError: `make` raised it; in all processes.
    """
    if jax.process_count() == 1:
        return make()
    answer = {}
    if is_primary():
        try:
            answer = {"value": make()}
        except UserError as error:
            answer = {"error": str(error)}
    answer = _broadcast(answer)
    if "error" in answer:
        raise UserError(answer["error"])
    return answer["value"]


def gather(value: Any) -> list[Any]:
    """The values of all processes, in their order; JSON must hold them."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(text)))
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: len(text)] = text
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def to_host(tree: Any) -> Any:
    """A tree of arrays as NumPy arrays, whole in every process, wherever their parts are."""

    def whole(x: Any) -> np.ndarray:
        local = not isinstance(x, jax.Array) or x.is_fully_addressable
        return np.asarray(x if local else multihost_utils.process_allgather(x, tiled=True))

    return jax.tree.map(whole, tree)


@contextlib.contextmanager
def catch_sigterm() -> Iterator[Callable[[int], bool]]:
    """Yields a function from the number of a step to whether to stop after it: SIGTERM has come.

    A single process stops at the step that it is in. Many all stop at one step that none of them
    has passed, whichever got the signal (`jax.distributed` sees to it); call at every step.
    """
    if jax.process_count() > 1:
        yield multihost_utils.reached_preemption_sync_point
        return
    if threading.current_thread() is not threading.main_thread():
        yield lambda step: False  # signals reach the main thread alone
        return
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield lambda step: stop.is_set()
    finally:
        signal.signal(signal.SIGTERM, before)


def leave(status: int) -> NoReturn:
    """Ends this process at once; the usual exit would wait for the other processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _broadcast(value: Any) -> Any:
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    padded = np.zeros(size, np.uint8)
    if is_primary():
        padded[:] = text
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes())
