# SPDX-License-Identifier: Apache-2.0
"""Engine for scanned layers, whose own state stacks the layers of a stack in one array.

The portable state has one array per layer, whichever engine trains it (`nn.layer_scan`).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.errors
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from transformer_jax.errors import UserError
from transformer_jax.nn.layer_scan import has_stacks, stack_layers, unstack_layers
from transformer_jax.parallel.engines import CompiledStep, Engine, TrainStep

Abstract = jax.ShapeDtypeStruct
Leaf = Any
"""An array or its shape, with a sharding over the mesh."""


class ScanEngine:
    """Engine that passes another engine states with stacked layers.

    The axis of layers is not divided among devices.

    Args:
      engine: engine that runs the step.
      axis_of: a layer's leaf -> axis of the layers in the stacked array: 1 after an axis of
        replicas, else 0.
    """

    def __init__(self, engine: Engine, axis_of: Callable[[Leaf], int] = lambda _: 0):
        self.engine = engine
        self.axis_of = axis_of
        self.mesh = engine.mesh
        self.axis_name = engine.axis_name
        self.num_replicas = engine.num_replicas
        self.row_shards = engine.row_shards
        self.constrain = engine.constrain
        self.sharded_call = engine.sharded_call
        self.lent_mesh = engine.lent_mesh

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
        return _stack_program(self.axis_of(leaves[0]), self._stacked(leaves).sharding)(leaves)

    def _unstack(self, leaf: jax.Array) -> Sequence[jax.Array]:
        count, layer = self._unstacked(leaf)
        take = _take_program(self.axis_of(leaf), layer.sharding)
        return [take(leaf, i) for i in range(count)]

    def _stacked(self, leaves: Sequence[Leaf]) -> Abstract:
        """Shape and sharding of the stack of leaves."""
        axis = self.axis_of(leaves[0])
        shape = list(leaves[0].shape)
        shape.insert(axis, len(leaves))
        spec = self._spec(leaves[0])
        spec.insert(axis, None)
        return _abstract(leaves[0], shape, spec)

    def _unstacked(self, leaf: Leaf) -> tuple[int, Abstract]:
        """Number of layers in a stacked leaf; shape and sharding of each."""
        axis = self.axis_of(leaf)
        shape = list(leaf.shape)
        count = shape.pop(axis)
        spec = self._spec(leaf)
        spec.pop(axis)
        return count, _abstract(leaf, shape, spec)

    def _spec(self, leaf: Leaf) -> list[Any]:
        """Axis of the mesh that divides each axis of a leaf."""
        spec = leaf.sharding.spec
        return [*spec, *[None] * (leaf.ndim - len(spec))]


def _abstract(like: Leaf, shape: Sequence[int], spec: Sequence[Any]) -> Abstract:
    sharding = NamedSharding(like.sharding.mesh, PartitionSpec(*spec))
    return jax.ShapeDtypeStruct(tuple(shape), like.dtype, sharding=sharding)


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
