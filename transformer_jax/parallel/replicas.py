"""Replicas: several runs of one config in one program, by `vmap`.

Each of the R replicas has its own parameters, optimizer state and random key.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.parallel.engines import CompiledStep, PerDevice, TrainStep, call, shape_struct
from transformer_jax.parallel.sharding import DATA, ParallelConfig, make_mesh, replicated
from transformer_jax.runtime import platform


@dataclasses.dataclass(frozen=True)
class ReplicaEngine:
    """`jit` of the step under `vmap` (`engines.Engine`): R replicas in one program.

    Every leaf of the state, and every array of the batch unless all replicas share it, has a
    leading axis [R], divided along the mesh's axis `data`; a device has all rows of its replicas.

    Attributes:
      mesh: of the axis `data` alone, whose size divides R.
      rates: each replica's learning rate, as a multiple of the schedule's.
      same_batch: whether all replicas train on the same batches.
    """

    mesh: Mesh
    rates: tuple[float, ...]
    same_batch: bool = False
    axis_name: ClassVar[None] = None
    row_shards: ClassVar[int] = 1

    @property
    def num_replicas(self) -> int:
        return len(self.rates)

    @property
    def divided(self) -> NamedSharding:
        """The sharding of an array whose first axis is [R]."""
        return NamedSharding(self.mesh, PartitionSpec(DATA))

    def compile(self, train_step: TrainStep, state: Any, batch: Any) -> CompiledStep:
        """As `Engine.compile`; the step's third argument is the replica's rate."""
        rates = None if set(self.rates) == {1.0} else np.array(self.rates, np.float32)
        axes = (0, None if self.same_batch else 0, None if rates is None else 0)

        def together(state: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
            return jax.vmap(train_step, axes)(state, batch, rates)

        lead = () if self.same_batch else (self.num_replicas,)
        sharding = replicated(self.mesh) if self.same_batch else self.divided
        batch = jax.tree.map(
            lambda leaf: shape_struct((*lead, *leaf.shape), leaf.dtype, sharding), batch
        )
        with platform.compiling_for(self.mesh.devices.flat[0]):
            step = jax.jit(
                together,
                donate_argnums=0,
                out_shardings=(self.divided, replicated(self.mesh)),
                compiler_options=platform.compiler_options(),
            )
            return CompiledStep.of(step.lower(state, batch), dict)

    def adopt(self, state: Any) -> Any:
        return state

    def portable(self, state: Any) -> Any:
        return state

    def constrain(self, x: jax.Array) -> jax.Array:
        return x  # one device has all rows of a replica

    @property
    def per_device(self) -> PerDevice | None:
        return call if self.mesh.size == 1 else None

    def replica(self, tree: Any, index: int) -> Any:
        """One replica's part of a tree of arrays [R, ...], replicated on every device."""
        return self._take(tree, index)

    @cached_property
    def _take(self) -> Callable[[Any, int], Any]:
        take = lambda tree, index: jax.tree.map(lambda x: x[index], tree)  # noqa: E731
        return jax.jit(take, out_shardings=replicated(self.mesh))


def make_replica_engine(
    config: ParallelConfig, rates: Sequence[float], same_batch: bool
) -> ReplicaEngine:
    """The engine of as many replicas as there are rates, over as many devices as divide them.

    Raises:
      ValueError: the config asks for more than one process, for fsdp or tensor parallelism, or for
        devices that do not divide the replicas.
    """
    if config.fsdp * config.tensor > 1 or jax.process_count() > 1:
        raise ValueError(
            "replicas are divided among the devices of one process, a whole one each: set fsdp and "
            "tensor to 1, or train the seeds one by one"
        )
    data = config.data or math.gcd(len(rates), jax.device_count())
    if len(rates) % data:
        raise ValueError(f"data {data} does not divide {len(rates)} replicas; set it to none")
    devices = jax.devices()[:data]
    mesh = make_mesh(dataclasses.replace(config, data=data), devices)
    return ReplicaEngine(mesh, tuple(rates), same_batch)
