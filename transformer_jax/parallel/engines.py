# SPDX-License-Identifier: Apache-2.0
"""Engines compile the pure training step and run it on the devices of a job.

All engines sum losses, gradients and weights over the devices and divide once, so that unequal
padding does not bias the gradient. Under `jit` the compiler inserts the sums; under `pmap` the step
gets an axis name and adds them up itself.

A state has two forms: the portable one, for checkpoints and evaluation, and the engine's own, which
is passed from step to step. They differ only in `ScanEngine`.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar

import flax.errors
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from transformer_jax.errors import UserError
from transformer_jax.nn.layer_scan import has_stacks, stack_layers, unstack_layers
from transformer_jax.nn.per_device import LentAxis, ShardedCall
from transformer_jax.parallel.program_fingerprint import program_fingerprint
from transformer_jax.parallel.sharding import (
    DATA,
    ROWS,
    LentMesh,
    ParallelConfig,
    make_mesh,
    place_local_rows,
    replicated,
    row_shards,
    spec_of,
)
from transformer_jax.runtime import platform

TrainStep = Callable[..., tuple[Any, dict[str, jax.Array]]]
"""`training.step.train_step` for one loss and optimizer: (state, batch) -> (state, sums)."""

Rows = Mapping[str, np.ndarray]
"""This process's rows of a batch: feature -> array."""

Leaf = Any
"""An array or its shape, with a sharding over the mesh."""


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A training step compiled for one shape of batch. It donates the buffers of its input state.

    Attributes:
      compiling: the compilation, which runs in a background thread.
      fingerprint: of the program (`program_fingerprint`), from the same thread.
      place: function from this process's rows to the batch that the executable takes.
    """

    compiling: Future[jax.stages.Compiled]
    fingerprint: Future[str]
    place: Callable[[Rows], Any]

    @property
    def executable(self) -> jax.stages.Compiled:
        """The compiled program; waits for the compilation."""
        return self.compiling.result()

    def __call__(self, state: Any, rows: Rows) -> tuple[Any, dict[str, jax.Array]]:
        """Takes one step; returns the next state, in the engine's form, and sums of the batch."""
        return self.executable(state, self.place(rows))


call_whole: ShardedCall = operator.call
"""Calls the function directly, on a device that has all heads and rows."""


def compile_step(
    step: TrainStep, state: Any, batch: Any, mesh: Mesh, place: Callable[[Rows], Any]
) -> CompiledStep:
    """Traces a step with `jit` and starts to compile it in the background.

    Args:
      step: function of the state and the whole batch.
      state: abstract, with shardings that the next state keeps.
      batch: abstract, with shardings.
      mesh: the devices; each gets the sums.
    """
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    with platform.compiling_for(mesh.devices.flat[0]):
        lowered = jax.jit(
            step,
            donate_argnums=0,
            out_shardings=(shardings, replicated(mesh)),
            compiler_options=platform.compiler_options(),
        ).lower(state, batch)
        pool = ThreadPoolExecutor(max_workers=1)
        fingerprint = pool.submit(program_fingerprint, lowered)
        compiling = pool.submit(lowered.compile)
        pool.shutdown(wait=False)
        return CompiledStep(compiling, fingerprint, place)


@dataclasses.dataclass(frozen=True)
class JitEngine:
    """Engine with `jit` over a mesh, in one process or many.

    Attributes:
      mesh: the devices, with the axes of `parallel.sharding`.
      num_replicas: number of models that are trained at once.
      axis_name: axis over which the step adds up its sums itself; None: the compiler inserts the
        sums.
    """

    mesh: Mesh
    num_replicas: int = 1
    axis_name: ClassVar[str | None] = None

    @property
    def row_shards(self) -> int:
        """Number of parts into which the devices divide the rows of a batch."""
        return row_shards(self.mesh)

    def lead_axes(self, leaf: Leaf) -> int:
        """Number of axes of a leaf of the state before a model's own: 1 for one [R, ...]."""
        return 0

    def compile(self, train_step: TrainStep, state: Any, batch: Any) -> CompiledStep:
        """Traces the step and starts to compile it in the background.

        Args:
          state: abstract portable state, with shardings.
          batch: abstract batch of one replica, with the rows of all processes.
        """
        with platform.sharded_over(self.mesh.size):
            return self._compile(train_step, state, batch)

    def _compile(self, step: TrainStep, state: Any, batch: Any) -> CompiledStep:
        rows = NamedSharding(self.mesh, ROWS)
        batch = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=rows), batch
        )
        return compile_step(step, state, batch, self.mesh, self._place)

    def _place(self, rows: Rows) -> Any:
        # In a single process the compiled step takes NumPy arrays itself, at a tenth of the cost.
        return rows if jax.process_count() == 1 else place_local_rows(rows, self.mesh)

    def from_portable(self, state: Any) -> Any:
        """Converts a portable state to the engine's own form."""
        return state

    def to_portable(self, state: Any) -> Any:
        """Converts a state, or a part of one, from the engine's own form to the portable one."""
        return state

    def constrain(self, x: jax.Array) -> jax.Array:
        """Shards activations [B, T, D] of the step by rows and tokens only, whatever divides the
        parameters; unchanged if a device has the whole of the rows that it works on."""
        if self.mesh.size == 1 or not isinstance(self.lent_mesh, LentMesh):
            return x
        tokens = NamedSharding(self.mesh, spec_of("rows", "sequence"))
        return jax.lax.with_sharding_constraint(x, tokens)

    @property
    def lent_mesh(self) -> Callable[[str], LentAxis | None] | None:
        """Axes of the mesh for the collectives of layers within the step; None: a device has all
        that a layer works on."""
        return LentMesh(self.mesh)

    @property
    def sharded_call(self) -> ShardedCall | None:
        """Runs functions that XLA cannot divide on each device's part, within the step; None: the
        engine cannot."""
        return call_whole if self.mesh.size == 1 else LentMesh(self.mesh).call


@dataclasses.dataclass(frozen=True)
class PmapEngine(JitEngine):
    """Engine whose devices, all of one process, each run the step on their own rows.

    Each device has the whole state. Results are those of `jax.pmap`, which is `jit` of `shard_map`
    too, but has an axis of devices in each array of the state.
    """

    axis_name: ClassVar[str] = DATA

    def compile(self, train_step: TrainStep, state: Any, batch: Any) -> CompiledStep:
        whole = PartitionSpec()
        # The step adds up its sums, so the next states are equal; JAX cannot check that.
        on_each_device = jax.shard_map(
            train_step, mesh=self.mesh, in_specs=(whole, ROWS), out_specs=whole, check_vma=False
        )
        return self._compile(on_each_device, state, batch)

    def lent_mesh(self, role: str) -> LentAxis | None:
        if role != "device_rows":
            return None
        return LentAxis(self.axis_name, self.mesh.size, lambda function, *_: function)

    @property
    def sharded_call(self) -> ShardedCall:
        return call_whole  # each device runs the whole step on its rows


@dataclasses.dataclass(frozen=True)
class ReplicaEngine(JitEngine):
    """Engine with `jit` of the step under `vmap`: R replicas, runs of one config, in one program.

    Each replica has its own parameters, optimizer state and random key.

    Every leaf of the state has a leading axis [R], divided along the mesh's axis `data`, except the
    leaves that all replicas share (frozen parameters), which are replicated. So has every array of
    the batch, unless all replicas share it. A device has all rows of its replicas.

    Attributes:
      mesh: mesh with one axis, `data`, whose size divides R.
      num_replicas: R.
      numbers: arrays [R] of the numbers that differ between replicas, the step's third argument.
      same_batch: all replicas train on the same batches.
    """

    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    same_batch: bool = False
    row_shards: ClassVar[int] = 1
    lent_mesh: ClassVar[None] = None

    @property
    def replica_sharding(self) -> NamedSharding:
        """Sharding of an array whose first axis is [R]."""
        return NamedSharding(self.mesh, PartitionSpec(DATA))

    def lead_axes(self, leaf: Leaf) -> int:
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

    @property
    def sharded_call(self) -> ShardedCall | None:
        return call_whole if self.mesh.size == 1 else None

    @functools.cached_property
    def replica(self) -> Callable[[Any, int], Any]:
        """Takes a replica, by its index, from a tree of arrays [R, ...]; every device gets all of
        it."""

        def take(tree: Any, index: int) -> Any:
            return jax.tree.map(lambda x: x[index], tree)

        return jax.jit(take, out_shardings=replicated(self.mesh))


class ScanEngine:
    """Engine for scanned layers, which passes another engine states with stacked layers.

    The portable state has one array per layer, whichever engine trains it (`nn.layer_scan`). The
    axis of layers is not divided among devices.

    Args:
      engine: engine that runs the step.
    """

    def __init__(self, engine: JitEngine):
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)  # all but what is below

    def compile(self, train_step: TrainStep, state: Any, batch: Any) -> CompiledStep:
        """Traces the step and starts to compile it in the background.

        Raises:
          UserError: the model's stacks cannot use stacked parameters.
        """
        stacked = stack_layers(state, self._stacked)
        try:
            if not has_stacks(stacked.params):
                # As flax raises below, for a stack that looks for single layers by name.
                raise flax.errors.ScopeParamNotFoundError("layer_0", "params")
            return self.engine.compile(train_step, stacked, batch)
        except flax.errors.ScopeParamNotFoundError as error:
            raise UserError(
                "config.model.scan_layers: a stack of this architecture does not loop over equal "
                "layers, as `Encoder` and `Decoder` of `nn.transformer` do; set it to false"
            ) from error

    def from_portable(self, state: Any) -> Any:
        return stack_layers(state, self._stack)

    def to_portable(self, state: Any) -> Any:
        return unstack_layers(state, self._unstack)

    def _stack(self, leaves: Sequence[jax.Array]) -> jax.Array:
        return _stack_program(self.lead_axes(leaves[0]), self._stacked(leaves).sharding)(leaves)

    def _unstack(self, leaf: jax.Array) -> Sequence[jax.Array]:
        axis = self.lead_axes(leaf)
        spec = _spec(leaf)
        del spec[axis]
        take = _take_program(axis, NamedSharding(self.mesh, PartitionSpec(*spec)))
        return [take(leaf, i) for i in range(leaf.shape[axis])]

    def _stacked(self, leaves: Sequence[Leaf]) -> jax.ShapeDtypeStruct:
        """Shape and sharding of the stack of leaves."""
        axis = self.lead_axes(leaves[0])
        shape = list(leaves[0].shape)
        shape.insert(axis, len(leaves))
        spec = _spec(leaves[0])
        spec.insert(axis, None)
        sharding = NamedSharding(self.mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(tuple(shape), leaves[0].dtype, sharding=sharding)


def _spec(leaf: Leaf) -> list[Any]:
    """Axis of the mesh that divides each axis of a leaf."""
    spec = leaf.sharding.spec
    return [*spec, *[None] * (leaf.ndim - len(spec))]


# One program per shape of parameter: a program of the whole state would take seconds to compile,
# more with more layers.


@functools.cache
def _stack_program(axis: int, sharding: Sharding) -> Callable[..., jax.Array]:
    return jax.jit(functools.partial(jnp.stack, axis=axis), out_shardings=sharding)


@functools.cache
def _take_program(axis: int, sharding: Sharding) -> Callable[..., jax.Array]:
    """Program that takes a layer by its number from a stacked leaf."""
    take = functools.partial(jax.lax.dynamic_index_in_dim, axis=axis, keepdims=False)
    return jax.jit(take, out_shardings=sharding)


Engine = JitEngine | ScanEngine


def make_engine(config: ParallelConfig, mesh: Mesh) -> JitEngine:
    """Makes the engine of a config, for a mesh.

    Raises:
      ValueError: pmap cannot divide the work in this way.
    """
    one_process = len({device.process_index for device in mesh.devices.flat}) == 1
    fits_pmap = mesh.shape[DATA] == mesh.size and one_process
    if config.engine == "pmap" and not fits_pmap:
        raise ValueError(
            "engine 'pmap' only divides rows among the devices of one process: set engine to 'jit' "
            "for other axes than data and for several processes"
        )
    pmap = config.engine == "pmap" or (config.engine == "auto" and fits_pmap and mesh.size > 1)
    return PmapEngine(mesh) if pmap else JitEngine(mesh)


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
