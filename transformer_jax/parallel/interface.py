"""What an engine is: how the one pure training step runs on the devices of a job."""

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, Self

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax.nn.division import PerDevice

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
        """The devices, by the axes of `parallel.mesh`."""

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
