# SPDX-License-Identifier: Apache-2.0
"""Replicas: several runs of one config in one program, by `vmap`.

Each of the R replicas has its own parameters, optimizer state and random key.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.nn.per_device import ShardedCall
from transformer_jax.parallel.engines import CompiledStep, TrainStep, call_whole, compile_step
from transformer_jax.parallel.sharding import DATA, ParallelConfig, make_mesh, replicated


@dataclasses.dataclass(frozen=True)
class ReplicaEngine:
    """Engine with `jit` of the step under `vmap`: R replicas in one program.

    Every leaf of the state has a leading axis [R], divided along the mesh's axis `data`, except the
    leaves that all replicas share (frozen parameters), which are replicated. So has every array of
    the batch, unless all replicas share it. A device has all rows of its replicas.

    Attributes:
      mesh: mesh with one axis, `data`, whose size divides R.
      num_replicas: R.
      numbers: arrays [R] of the numbers that differ between replicas, the step's third argument.
      same_batch: all replicas train on the same batches.
    """

    mesh: Mesh
    num_replicas: int
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    same_batch: bool = False
    axis_name: ClassVar[None] = None
    row_shards: ClassVar[int] = 1
    lent_mesh: ClassVar[None] = None

    @property
    def replica_sharding(self) -> NamedSharding:
        """Sharding of an array whose first axis is [R]."""
        return NamedSharding(self.mesh, PartitionSpec(DATA))

    def lead_axes(self, leaf: Any) -> int:
        """Number of axes before a replica's own: 0 for a leaf that all replicas share."""
        return int(DATA in leaf.sharding.spec)

    def compile(self, train_step: TrainStep, state: Any, batch: Any) -> CompiledStep:
        """Traces the step, whose third argument has the replica's numbers, and starts to compile
        it."""
        state_axes = jax.tree.map(lambda leaf: 0 if self.lead_axes(leaf) else None, state)
        axes = (state_axes, None if self.same_batch else 0, 0)

        def all_replicas(state: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
            return jax.vmap(train_step, axes, (state_axes, 0))(state, batch, dict(self.numbers))

        lead = () if self.same_batch else (self.num_replicas,)
        sharding = replicated(self.mesh) if self.same_batch else self.replica_sharding
        batch = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*lead, *leaf.shape), leaf.dtype, sharding=sharding),
            batch,
        )
        return compile_step(all_replicas, state, batch, self.mesh, dict)

    def from_portable(self, state: Any) -> Any:
        return state

    def to_portable(self, state: Any) -> Any:
        return state

    def constrain(self, x: jax.Array) -> jax.Array:
        return x  # one device has all rows of a replica

    @property
    def sharded_call(self) -> ShardedCall | None:
        return call_whole if self.mesh.size == 1 else None

    @cached_property
    def replica(self) -> Callable[[Any, int], Any]:
        """Takes a replica, by its index, from a tree of arrays [R, ...]; every device gets all of
        it."""

        def take(tree: Any, index: int) -> Any:
            return jax.tree.map(lambda x: x[index], tree)

        return jax.jit(take, out_shardings=replicated(self.mesh))


def make_replica_engine(
    config: ParallelConfig,
    num_replicas: int,
    numbers: Mapping[str, Any] | None = None,
    *,
    same_batch: bool,
) -> ReplicaEngine:
    """Makes an engine for R replicas in one process, on as many devices as divide R; arguments as
    of `ReplicaEngine`.

    Raises:
      ValueError: the config has a number of devices that does not divide the replicas.
    """
    data = config.data or math.gcd(num_replicas, jax.device_count())
    if num_replicas % data:
        raise ValueError(f"data {data} does not divide {num_replicas} replicas; set it to none")
    devices = jax.devices()[:data]
    mesh = make_mesh(dataclasses.replace(config, data=data), devices)
    return ReplicaEngine(mesh, num_replicas, numbers or {}, same_batch)
