"""Engines: how the one pure training step runs on the devices that are there.

Both sum losses, gradients and weights over all devices and divide once, so that the devices'
unequal padding cannot bias the gradient. With `jit` the compiler adds the sums; the step under
`pmap` names its axis and adds them itself.

A state has two forms: the portable one, arrays over the mesh, which checkpoints and evaluation
know, and the engine's own, which the step carries. They differ under pmap alone.
"""

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.parallel.mesh import (
    DATA,
    ROWS,
    ParallelConfig,
    make_mesh,
    place_own_rows,
    replicated,
    row_shards,
)
from transformer_jax.runtime import platform

TrainStep = Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]]


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A training step compiled for one shape of batch; the state given to it is donated.

    Attributes:
      compiling: XLA at work on it, beside whatever its owner does before the first step.
      place: makes of this process's rows what the executable takes.
    """

    compiling: Future[jax.stages.Compiled]
    place: Callable[[Mapping[str, Any]], Any]

    @classmethod
    def of(cls, lowered: jax.stages.Lowered, place, options=None) -> "CompiledStep":
        """Starts to compile, under further options of XLA's."""
        with_one_thread = ThreadPoolExecutor(max_workers=1)
        compiling = with_one_thread.submit(lowered.compile, options)
        with_one_thread.shutdown(wait=False)
        return cls(compiling, place)

    @property
    def executable(self) -> jax.stages.Compiled:
        """XLA's, waited for."""
        return self.compiling.result()

    def __call__(self, state: Any, batch: Mapping[str, Any]) -> tuple[Any, dict[str, jax.Array]]:
        """(state in the engine's form, this process's rows) -> (state, sums of the whole batch)."""
        return self.executable(state, self.place(batch))


@dataclasses.dataclass(frozen=True)
class JitEngine:
    """`jit` over a mesh: data, fsdp and tensor parallelism, in one process or many."""

    mesh: Mesh
    axis_name: ClassVar[None] = None
    num_replicas: ClassVar[int] = 1

    @property
    def row_shards(self) -> int:
        """Into how many parts the devices divide the rows of a batch."""
        return row_shards(self.mesh)

    def compile(self, train_step: TrainStep, state: Any, batch: Any) -> CompiledStep:
        """For a portable abstract state and the abstract arrays of a whole batch: traced before
        this returns, compiled in the background."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
        step = jax.jit(
            train_step,
            donate_argnums=0,
            out_shardings=(shardings, replicated(self.mesh)),
            compiler_options=platform.compiler_options(),
        )
        rows = NamedSharding(self.mesh, ROWS)
        batch = jax.tree.map(lambda leaf: shape_struct(leaf.shape, leaf.dtype, rows), batch)
        return CompiledStep.of(step.lower(state, batch), self._place)

    def _place(self, batch):
        # Of one process, the compiled step takes NumPy's arrays itself, at a tenth of the cost.
        return batch if jax.process_count() == 1 else place_own_rows(batch, self.mesh)

    def adopt(self, state: Any) -> Any:
        """A portable state in the engine's own form."""
        return state

    def portable(self, state: Any) -> Any:
        """A state in the engine's own form as a portable one."""
        return state

    def constrain(self, x: jax.Array) -> jax.Array:
        """Keeps activations [B, ...] divided by rows alone, whatever the parameters are."""
        if self.mesh.size == 1:
            return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, ROWS))


@dataclasses.dataclass(frozen=True)
class PmapEngine:
    """`pmap` over the devices of one process: each holds the whole state and takes its own rows.

    In the engine's own form every leaf of the state has a leading axis of devices.
    """

    mesh: Mesh
    axis_name: ClassVar[str] = "devices"
    num_replicas: ClassVar[int] = 1

    @property
    def row_shards(self) -> int:
        """As `JitEngine.row_shards`."""
        return self.mesh.size

    def compile(self, train_step: TrainStep, state: Any, batch: Any) -> CompiledStep:
        """As `JitEngine.compile`."""
        step = jax.pmap(
            train_step,
            self.axis_name,
            out_axes=(0, None),
            donate_argnums=0,
            devices=list(self.mesh.devices.flat),
        )
        count = self.mesh.size
        state = jax.tree.map(lambda leaf: shape_struct((count, *leaf.shape), leaf.dtype), state)
        batch = jax.tree.map(
            lambda leaf: shape_struct(_divided(leaf.shape, count), leaf.dtype), batch
        )
        lowered = step.lower(state, batch)
        return CompiledStep.of(lowered, self._place, platform.compiler_options())

    def _place(self, batch):
        return {name: x.reshape(_divided(x.shape, self.mesh.size)) for name, x in batch.items()}

    def adopt(self, state: Any) -> Any:
        """As `JitEngine.adopt`."""

        def stack(x):
            return jnp.broadcast_to(x, (self.mesh.size, *x.shape))

        return jax.jit(lambda tree: jax.tree.map(stack, tree), out_shardings=self._stacked)(state)

    def portable(self, state: Any) -> Any:
        """As `JitEngine.portable`."""
        return self._unstack(state)

    def constrain(self, x: jax.Array) -> jax.Array:
        """Nothing to divide inside of one device."""
        return x

    @cached_property
    def _stacked(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(DATA))

    @cached_property
    def _unstack(self):
        first = lambda tree: jax.tree.map(lambda x: x[0], tree)  # noqa: E731
        return jax.jit(first, out_shardings=replicated(self.mesh))


Engine = JitEngine | PmapEngine


def make_engine(config: ParallelConfig, mesh: Mesh | None = None) -> Engine:
    """The engine that `config` asks for, over its mesh unless another one is given.

    Raises:
      ValueError: the mesh cannot be made, or pmap is asked for more than it does.
    """
    mesh = mesh or make_mesh(config)
    rows_alone = row_shards(mesh) == mesh.size and mesh.shape[DATA] == mesh.size
    fits_pmap = rows_alone and jax.process_count() == 1
    if config.engine == "pmap" and not fits_pmap:
        raise ValueError(
            "engine 'pmap' divides rows among the devices of one process: with fsdp, tensor or "
            "several processes set engine to 'jit'"
        )
    pmap = config.engine == "pmap" or (config.engine == "auto" and fits_pmap and mesh.size > 1)
    return PmapEngine(mesh) if pmap else JitEngine(mesh)


def create_state(init_state: Callable, seed: Any, abstract: Any) -> Any:
    """The portable state `init_state(seed)`, made in its parts: never whole on one device.

    Args:
      init_state: a function from a seed to a state.
      seed: of the run, or those of replicas.
      abstract: the state's shapes with their shardings (`rules.shard`).
    """
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    # What runs once is not worth the time that LLVM would spend on it: the numbers are the same.
    options = {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else {}
    return jax.jit(init_state, out_shardings=shardings, compiler_options=options)(seed)


def _divided(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    return (count, shape[0] // count, *shape[1:])


def shape_struct(shape, dtype, sharding=None) -> jax.ShapeDtypeStruct:
    """An abstract array, with its sharding if it has one."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
