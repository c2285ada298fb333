"""How a process finds the others of its job and joins them."""

import collections
import dataclasses
import logging
from collections.abc import Callable, Sequence

import jax
from jax._src.clusters import ClusterEnv

from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts
from transformer_jax.parallel.agreement import Prepare
from transformer_jax.parallel.meeting import WAIT_SECONDS, meet
from transformer_jax.runtime.platform import require_device

_SAY_SO = "give --coordinator=HOST:PORT, --num_processes and --process_id"
_SECONDS_TO_END = 3600  # for others, while the first process brings its last files to a bucket

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


def join[Own](job: Job, prepare: Prepare[Own], heartbeat_seconds: Callable[[Own], int]) -> Own:
    """Meets the other processes and connects with them; must come before any other use of JAX.

    Args:
      job: how to find it.
      prepare: makes this process's own thing, a config, and its statement.
      heartbeat_seconds: of the own thing; a process silent for longer counts as lost.

    Returns:
      The process's own thing.

    Raises:
      UserError: the others cannot be found, or they are about to do something else.
    """
    place, device_ids = _place(job)
    own = meet(*place, prepare)
    connect(*place, heartbeat_seconds(own), device_ids)
    return own


def _place(job: Job) -> tuple[tuple[str, int, int], Sequence[int] | None]:
    """Coordinator, number of processes and this one's; its devices, None for all of the machine.

    Raises:
      UserError: the environment does not tell what the job does not say, or it does not fit.
    """
    try:
        coordinator, count, number, device_ids = ClusterEnv.auto_detect_unset_distributed_params(
            job.coordinator, job.num_processes, job.process_id, None, None, WAIT_SECONDS
        )
    except (ValueError, KeyError, RuntimeError, OSError) as error:
        raise UserError(f"--distributed: {error}; {_SAY_SO}") from error
    if coordinator is None or count is None or number is None:
        raise UserError(f"--distributed: no scheduler tells the job's processes; {_SAY_SO}")
    if number >= count:
        raise UserError(
            f"--process_id={number} is too large for --num_processes={count}; count from 0"
        )
    return (coordinator, count, number), device_ids


def connect(
    coordinator: str,
    num_processes: int,
    process_id: int,
    heartbeat_seconds: int,
    device_ids: Sequence[int] | None = None,
) -> None:
    """Connects processes that have met; must come before any other use of JAX.

    Args:
      coordinator: HOST:PORT of process 0.
      num_processes: of the job.
      process_id: of this one.
      heartbeat_seconds: a process silent for longer counts as lost.
      device_ids: of this process, among those of its machine; None: all of them.

    Raises:
      UserError: the processes have not equally many devices.
    """
    jax.distributed.initialize(
        coordinator,
        num_processes,
        process_id,
        device_ids,
        heartbeat_timeout_seconds=heartbeat_seconds,
        shutdown_timeout_seconds=_SECONDS_TO_END,
    )
    hosts.end_after_sigterm(heartbeat_seconds)
    require_device()
    counts = collections.Counter(device.process_index for device in jax.devices())
    if len(set(counts.values())) > 1:
        told = ", ".join(f"process {i} has {counts[i]}" for i in sorted(counts))
        raise hosts.refusal(f"the processes of a job need equally many devices: {told}")
    if hosts.is_primary():
        logger.info("%d processes, %d devices", jax.process_count(), jax.device_count())
    else:
        logging.getLogger("transformer_jax").setLevel(logging.WARNING)
