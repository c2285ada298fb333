"""Scanned layers: an engine whose own state has the layers of each stack in one array each.

The portable state names the layers one by one, whatever trains it (`nn.layer_scan`).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.errors
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from transformer_jax.errors import UserError
from transformer_jax.nn.layer_scan import has_stacks, stack_layers, unstack_layers
from transformer_jax.parallel.engines import (
    CompiledStep,
    Engine,
    PerDevice,
    TrainStep,
    shape_struct,
)

Abstract = jax.ShapeDtypeStruct
Leaf = Any
"""An array, or its shape, with a sharding over the mesh."""


@dataclasses.dataclass(frozen=True)
class StackedLayers:
    """An engine (`interface.Engine`) that hands the step a state with stacked layers.

    No axis of the mesh divides the axis of layers.

    Attributes:
      engine: which runs the step.
      axis: of the layers in the portable state's arrays: 1 behind replicas, else 0.
    """

    engine: Engine
    axis: int = 0

    @property
    def mesh(self) -> Mesh:
        return self.engine.mesh

    @property
    def axis_name(self) -> str | None:
        return self.engine.axis_name

    @property
    def num_replicas(self) -> int:
        return self.engine.num_replicas

    @property
    def row_shards(self) -> int:
        return self.engine.row_shards

    def compile(self, train_step: TrainStep, state: Any, batch: Any) -> CompiledStep:
        """As `Engine.compile`; UserError where the model's stacks take no stacked parameters."""
        stacked = stack_layers(state, self._join)
        try:
            if not has_stacks(stacked.params):
                raise flax.errors.ScopeParamNotFoundError("layer_0", "params")
            return self.engine.compile(train_step, stacked, batch)
        except flax.errors.ScopeParamNotFoundError as error:
            raise UserError(
                "config.model.scan_layers: a stack of this architecture does not loop over equal "
                "layers, as `Encoder` and `Decoder` of `nn.transformer` do; set it to false"
            ) from error

    def adopt(self, state: Any) -> Any:
        return self.engine.adopt(stack_layers(state, self._stack))

    def portable(self, state: Any) -> Any:
        return unstack_layers(self.engine.portable(state), self._unstack)

    def constrain(self, x: jax.Array) -> jax.Array:
        return self.engine.constrain(x)

    @property
    def per_device(self) -> PerDevice | None:
        return self.engine.per_device

    def _stack(self, leaves: Sequence[jax.Array]) -> jax.Array:
        return _stacking(self.axis, self._join(leaves).sharding)(leaves)

    def _unstack(self, leaf: jax.Array) -> Sequence[jax.Array]:
        layers = self._split(leaf)
        take = _taking(self.axis, layers[0].sharding)
        return [take(leaf, i) for i in range(len(layers))]

    def _join(self, leaves: Sequence[Leaf]) -> Abstract:
        """The shape and sharding of leaves that are stacked."""
        shape, spec = list(leaves[0].shape), self._spec(leaves[0])
        shape.insert(self.axis, len(leaves))
        spec.insert(self.axis, None)
        return _abstract(leaves[0], shape, spec)

    def _split(self, leaf: Leaf) -> list[Abstract]:
        """The inverse of `_join`."""
        shape, spec = list(leaf.shape), self._spec(leaf)
        count, _ = shape.pop(self.axis), spec.pop(self.axis)
        return [_abstract(leaf, shape, spec)] * count

    def _spec(self, leaf: Leaf) -> list[Any]:
        """The axes of the mesh that divide each axis of a leaf."""
        spec = leaf.sharding.spec
        return [*spec, *[None] * (leaf.ndim - len(spec))]


def _abstract(like: Leaf, shape: Sequence[int], spec: Sequence[Any]) -> Abstract:
    sharding = NamedSharding(like.sharding.mesh, PartitionSpec(*spec))
    return shape_struct(tuple(shape), like.dtype, sharding)


# Programs of one parameter, which all of its shape share: one of the whole state would take seconds
# to compile, and the longer the more layers there are.


@functools.cache
def _stacking(axis: int, sharding: Sharding) -> Callable[..., jax.Array]:
    """Leaves -> a stacked one."""
    return jax.jit(functools.partial(jnp.stack, axis=axis), out_shardings=sharding)


@functools.cache
def _taking(axis: int, sharding: Sharding) -> Callable[..., jax.Array]:
    """(a stacked leaf, the number of a layer) -> that layer's."""
    take = functools.partial(jax.lax.dynamic_index_in_dim, axis=axis, keepdims=False)
    return jax.jit(take, out_shardings=sharding)
