"""Engines: how the one pure training step runs on the devices that are there.

All sum losses, gradients and weights over the devices and divide once, so that unequal padding
cannot bias the gradient. Under `jit` the compiler inserts the sums; under `pmap` the step knows the
name of its axis and adds them up itself.

A state has two forms: the portable one, arrays over the mesh, for checkpoints and evaluation; and
the engine's own, which goes from step to step. They differ under pmap and in
`parallel.scan_engine`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.nn.per_device import PerDevice
from transformer_jax.parallel.sharding import (
    DATA,
    ROWS,
    TENSOR,
    ParallelConfig,
    make_mesh,
    place_own_rows,
    replicated,
    row_shards,
)
from transformer_jax.runtime import platform

# FOLDED parallel.interface: What an engine is: how the one pure training step runs on the devices
# of a job.


TrainStep = Callable[..., tuple[Any, dict[str, jax.Array]]]
"""`training.step.train_step` for one loss and optimizer: (state, batch) -> (state, sums)."""

Rows = Mapping[str, np.ndarray]
"""The rows of a batch that this process has, by the name of the array."""


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A training step compiled for one shape of batch; it donates the state that it is given.

    Attributes:
      compiling: the compilation, which runs in a thread of its own.
      place: this process's rows -> the batch that the executable takes.
    """

    compiling: Future[jax.stages.Compiled]
    place: Callable[[Rows], Any]

    @classmethod
    def of(
        cls,
        lowered: jax.stages.Lowered,
        place: Callable[[Rows], Any],
        options: dict[str, Any] | None = None,
    ) -> Self:
        """Starts to compile, with further options for XLA."""
        with_one_thread = ThreadPoolExecutor(max_workers=1)
        compiling = with_one_thread.submit(lowered.compile, options)
        with_one_thread.shutdown(wait=False)
        return cls(compiling, place)

    @property
    def executable(self) -> jax.stages.Compiled:
        """The compiled program; waits until it is."""
        return self.compiling.result()

    def __call__(self, state: Any, rows: Rows) -> tuple[Any, dict[str, jax.Array]]:
        """(state in the engine's form, this process's rows) -> (state, sums of the whole batch)."""
        return self.executable(state, self.place(rows))


class Engine(Protocol):
    """How the pure training step runs on the devices of a job."""

    @property
    def mesh(self) -> Mesh:
        """The devices, by the axes of `parallel.sharding`."""

    @property
    def axis_name(self) -> str | None:
        """The axis over which the step must add up its sums itself; None: the compiler does."""

    @property
    def num_replicas(self) -> int:
        """Models that are trained at once."""

    @property
    def row_shards(self) -> int:
        """Parts that the devices divide the rows of a batch into."""

    def compile(self, train_step: TrainStep, state: Any, batch: Any) -> CompiledStep:
        """Traces the step before it returns; XLA then compiles in the background.

        Args:
          train_step: pure.
          state: the shapes of a portable state, with their shardings.
          batch: the shapes of a whole batch, of one replica.
        """

    def adopt(self, state: Any) -> Any:
        """A portable state in the engine's own form."""

    def portable(self, state: Any) -> Any:
        """A state in the engine's own form as a portable one."""

    def constrain(self, x: jax.Array) -> jax.Array:
        """Activations [B, ...] of the step, divided by rows alone, as parameters may not be."""

    @property
    def per_device(self) -> PerDevice | None:
        """Runs a function that XLA cannot divide, inside the step; None where it cannot."""


def call(
    function: Callable, of_heads: tuple[jax.Array, ...], of_rows: tuple[jax.Array, ...]
) -> jax.Array:
    """`PerDevice` where one device has everything."""
    return function(of_heads, of_rows)


def shape_struct(
    shape: tuple[int, ...], dtype: np.dtype, sharding: jax.sharding.Sharding | None = None
) -> jax.ShapeDtypeStruct:
    """An abstract array, with its sharding if it has one."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


@dataclasses.dataclass(frozen=True)
class JitEngine:
    """`jit` over a mesh: data, fsdp and tensor parallelism, in one process or many (`Engine`)."""

    mesh: Mesh
    axis_name: ClassVar[None] = None
    num_replicas: ClassVar[int] = 1

    @property
    def row_shards(self) -> int:
        return row_shards(self.mesh)

    def compile(self, train_step: TrainStep, state: Any, batch: Any) -> CompiledStep:
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
        rows = NamedSharding(self.mesh, ROWS)
        batch = jax.tree.map(lambda leaf: shape_struct(leaf.shape, leaf.dtype, rows), batch)
        with (
            platform.compiling_for(self.mesh.devices.flat[0]),
            platform.sharded_over(self.mesh.size),
        ):
            step = jax.jit(
                train_step,
                donate_argnums=0,
                out_shardings=(shardings, replicated(self.mesh)),
                compiler_options=platform.compiler_options(),
            )
            return CompiledStep.of(step.lower(state, batch), self._place)

    def _place(self, rows: Rows) -> Any:
        # With one process the compiled step takes NumPy arrays itself, at a tenth of the cost.
        return rows if jax.process_count() == 1 else place_own_rows(rows, self.mesh)

    def adopt(self, state: Any) -> Any:
        return state

    def portable(self, state: Any) -> Any:
        return state

    def constrain(self, x: jax.Array) -> jax.Array:
        if self.mesh.size == 1:
            return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, ROWS))

    @property
    def per_device(self) -> PerDevice:
        if self.mesh.size == 1:
            return call
        heads = PartitionSpec(*ROWS, None, TENSOR)

        def divided(
            function: Callable, of_heads: tuple[jax.Array, ...], of_rows: tuple[jax.Array, ...]
        ) -> jax.Array:
            # Nothing in the function crosses devices, so there is nothing to check.
            each = jax.shard_map(
                function,
                mesh=self.mesh,
                in_specs=(heads, ROWS),
                out_specs=heads if of_heads else ROWS,
                check_vma=False,
            )
            return each(of_heads, of_rows)

        return divided


@dataclasses.dataclass(frozen=True)
class PmapEngine:
    """`pmap` over the devices of one process (`Engine`): each holds the whole state.

    In the engine's own form every leaf of the state has a leading axis of devices.
    """

    mesh: Mesh
    axis_name: ClassVar[str] = "devices"
    num_replicas: ClassVar[int] = 1

    @property
    def row_shards(self) -> int:
        return self.mesh.size

    def compile(self, train_step: TrainStep, state: Any, batch: Any) -> CompiledStep:
        step = jax.pmap(
            train_step,
            self.axis_name,
            out_axes=(0, None),
            donate_argnums=0,
            devices=list(self.mesh.devices.flat),
        )
        count = self.mesh.size
        state = jax.tree.map(lambda leaf: shape_struct((count, *leaf.shape), leaf.dtype), state)
        rows = {name: shape_struct(_divided(x.shape, count), x.dtype) for name, x in batch.items()}
        with platform.compiling_for(self.mesh.devices.flat[0]):
            options = platform.compiler_options()
            return CompiledStep.of(step.lower(state, rows), self._place, options)

    def _place(self, rows: Rows) -> Any:
        return {name: x.reshape(_divided(x.shape, self.mesh.size)) for name, x in rows.items()}

    def adopt(self, state: Any) -> Any:
        def stack(x: jax.Array) -> jax.Array:
            return jnp.broadcast_to(x, (self.mesh.size, *x.shape))

        return jax.jit(lambda tree: jax.tree.map(stack, tree), out_shardings=self._stacked)(state)

    def portable(self, state: Any) -> Any:
        return self._unstack(state)

    def constrain(self, x: jax.Array) -> jax.Array:
        return x  # one device has the whole of its rows

    @property
    def per_device(self) -> PerDevice:
        return call  # the whole step is each device's

    @cached_property
    def _stacked(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(DATA))

    @cached_property
    def _unstack(self) -> Callable[[Any], Any]:
        first = lambda tree: jax.tree.map(lambda x: x[0], tree)  # noqa: E731
        return jax.jit(first, out_shardings=replicated(self.mesh))


def make_engine(config: ParallelConfig, mesh: Mesh | None = None) -> Engine:
    """The engine that `config` asks for, over its mesh unless another one is given.

    Raises:
      ValueError: the mesh cannot be made, or pmap cannot divide the work so.
    """
    mesh = mesh or make_mesh(config)
    rows_alone = row_shards(mesh) == mesh.size and mesh.shape[DATA] == mesh.size
    one_process = len({device.process_index for device in mesh.devices.flat}) == 1
    fits_pmap = rows_alone and one_process
    if config.engine == "pmap" and not fits_pmap:
        raise ValueError(
            "engine 'pmap' divides rows among the devices of one process: with fsdp, tensor or "
            "several processes set engine to 'jit'"
        )
    pmap = config.engine == "pmap" or (config.engine == "auto" and fits_pmap and mesh.size > 1)
    return PmapEngine(mesh) if pmap else JitEngine(mesh)


def create_state(init_state: Callable[[Any], Any], seed: Any, abstract: Any) -> Any:
    """The portable state `init_state(seed)`; each device makes its parts alone.

    Args:
      init_state: a function from a seed to a state.
      seed: of the run, or those of replicas.
      abstract: the state's shapes with their shardings (`rules.shard`).
    """
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    # This runs once, so LLVM need not spend time on optimizing it; the numbers are the same.
    options = {"xla_backend_optimization_level": 1} if platform.is_cpu() else {}
    return jax.jit(init_state, out_shardings=shardings, compiler_options=options)(seed)


def _divided(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    return (count, shape[0] // count, *shape[1:])
