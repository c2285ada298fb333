# SPDX-License-Identifier: Apache-2.0
"""Engines compile the pure training step and run it on the devices of a job.

All engines sum losses, gradients and weights over the devices and divide once, so that unequal
padding does not bias the gradient. Under `jit` the compiler inserts the sums; under `pmap` the step
gets an axis name and adds them up itself.

A state has two forms: the portable one, for checkpoints and evaluation, and the engine's own, which
is passed from step to step. They differ only in `parallel.scan_engine`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, Protocol, Self

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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

    @classmethod
    def start(cls, lowered: jax.stages.Lowered, place: Callable[[Rows], Any]) -> Self:
        """Starts the compilation."""
        pool = ThreadPoolExecutor(max_workers=1)
        fingerprint = pool.submit(program_fingerprint, lowered)
        compiling = pool.submit(lowered.compile)
        pool.shutdown(wait=False)
        return cls(compiling, fingerprint, place)

    @property
    def executable(self) -> jax.stages.Compiled:
        """The compiled program; waits for the compilation."""
        return self.compiling.result()

    def __call__(self, state: Any, rows: Rows) -> tuple[Any, dict[str, jax.Array]]:
        """Takes one step; returns the next state, in the engine's form, and sums of the batch."""
        return self.executable(state, self.place(rows))


class Engine(Protocol):
    """Compiles and runs the pure training step on the devices of a job."""

    @property
    def mesh(self) -> Mesh:
        """The devices, with the axes of `parallel.sharding`."""

    @property
    def axis_name(self) -> str | None:
        """Axis over which the step adds up its sums itself; None: the compiler inserts the sums."""

    @property
    def num_replicas(self) -> int:
        """Number of models that are trained at once."""

    @property
    def row_shards(self) -> int:
        """Number of parts into which the devices divide the rows of a batch."""

    def compile(self, train_step: TrainStep, state: Any, batch: Any) -> CompiledStep:
        """Traces the step and starts to compile it in the background.

        Args:
          state: abstract portable state, with shardings.
          batch: abstract batch of one replica, with the rows of all processes.
        """

    def from_portable(self, state: Any) -> Any:
        """Converts a portable state to the engine's own form."""

    def to_portable(self, state: Any) -> Any:
        """Converts a state, or a part of one, from the engine's own form to the portable one."""

    def constrain(self, x: jax.Array) -> jax.Array:
        """Shards activations [B, T, D] of the step by rows and tokens only, whatever divides the
        parameters."""

    @property
    def sharded_call(self) -> ShardedCall | None:
        """Runs functions that XLA cannot divide on each device's part, within the step; None: the
        engine cannot."""

    @property
    def lent_mesh(self) -> Callable[[str], LentAxis | None] | None:
        """Axes of the mesh for the collectives of layers within the step; None: a device has all
        that a layer works on."""


def call_whole(
    function: Callable, of_heads: tuple[jax.Array, ...], of_rows: tuple[jax.Array, ...]
) -> jax.Array:
    """Calls the function directly: the `ShardedCall` of a device that has all heads and rows."""
    return function(of_heads, of_rows)


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
        compiled = jax.jit(
            step,
            donate_argnums=0,
            out_shardings=(shardings, replicated(mesh)),
            compiler_options=platform.compiler_options(),
        )
        return CompiledStep.start(compiled.lower(state, batch), place)


@dataclasses.dataclass(frozen=True)
class JitEngine:
    """Engine with `jit` over a mesh, in one process or many."""

    mesh: Mesh
    axis_name: ClassVar[str | None] = None
    num_replicas: ClassVar[int] = 1

    @property
    def row_shards(self) -> int:
        return row_shards(self.mesh)

    def compile(self, train_step: TrainStep, state: Any, batch: Any) -> CompiledStep:
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
        return state

    def to_portable(self, state: Any) -> Any:
        return state

    def constrain(self, x: jax.Array) -> jax.Array:
        if self.mesh.size == 1:
            return x
        tokens = NamedSharding(self.mesh, spec_of("rows", "sequence"))
        return jax.lax.with_sharding_constraint(x, tokens)

    @property
    def lent_mesh(self) -> Callable[[str], LentAxis | None]:
        return LentMesh(self.mesh)

    @property
    def sharded_call(self) -> ShardedCall:
        if self.mesh.size == 1:
            return call_whole
        heads = spec_of("rows", "tokens", "heads")

        def divided(
            function: Callable, of_heads: tuple[jax.Array, ...], of_rows: tuple[jax.Array, ...]
        ) -> jax.Array:
            # The function has no communication between devices, so there is nothing to check.
            on_each_device = jax.shard_map(
                function,
                mesh=self.mesh,
                in_specs=(heads, ROWS),
                out_specs=heads if of_heads else ROWS,
                check_vma=False,
            )
            return on_each_device(of_heads, of_rows)

        return divided


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

    def constrain(self, x: jax.Array) -> jax.Array:
        return x  # one device has the whole of its rows

    def lent_mesh(self, role: str) -> LentAxis | None:
        if role != "device_rows":
            return None
        return LentAxis(self.axis_name, self.mesh.size, lambda function, *_: function)

    @property
    def sharded_call(self) -> ShardedCall:
        return call_whole  # each device runs the whole step on its rows


def make_engine(config: ParallelConfig, mesh: Mesh | None = None) -> Engine:
    """Makes the engine of a config, for a mesh; None: the mesh of the config.

    Raises:
      ValueError: the mesh cannot be made, or pmap cannot divide the work in this way.
    """
    mesh = mesh or make_mesh(config)
    one_process = len({device.process_index for device in mesh.devices.flat}) == 1
    fits_pmap = mesh.shape[DATA] == mesh.size and one_process
    if config.engine == "pmap" and not fits_pmap:
        raise ValueError(
            "engine 'pmap' only divides rows among the devices of one process: set engine to 'jit' "
            "for other axes than data and for several processes"
        )
    pmap = config.engine == "pmap" or (config.engine == "auto" and fits_pmap and mesh.size > 1)
    return PmapEngine(mesh) if pmap else JitEngine(mesh)
