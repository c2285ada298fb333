"""Scanned layers: an engine whose own state has the layers of each stack in one array each.

The portable state names the layers one by one, whatever trains it (`nn.depth`).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.errors
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.errors import UserError
from transformer_jax.nn.depth import has_stacks, stack_layers, unstack_layers
from transformer_jax.parallel.interface import (
    CompiledStep,
    Engine,
    PerDevice,
    TrainStep,
    shape_struct,
)

Abstract = jax.ShapeDtypeStruct


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
                "layers, as `nn.encoder.Encoder` and `nn.decoder.Decoder` do; set it to false"
            ) from error

    def adopt(self, state: Any) -> Any:
        stacked = stack_layers(_shapes(state), self._join)
        return self.engine.adopt(_program(_stack, self.axis, _shardings(stacked))(state))

    def portable(self, state: Any) -> Any:
        state = self.engine.portable(state)
        unstacked = unstack_layers(_shapes(state), self._split)
        return _program(_unstack, self.axis, _shardings(unstacked))(state)

    def constrain(self, x: jax.Array) -> jax.Array:
        return self.engine.constrain(x)

    @property
    def per_device(self) -> PerDevice | None:
        return self.engine.per_device

    def _join(self, leaves: Sequence[Abstract]) -> Abstract:
        """The shape and sharding of leaves that are stacked."""
        shape, spec = list(leaves[0].shape), self._spec(leaves[0])
        shape.insert(self.axis, len(leaves))
        spec.insert(self.axis, None)
        return _abstract(leaves[0], shape, spec)

    def _split(self, leaf: Abstract) -> list[Abstract]:
        """The inverse of `_join`."""
        shape, spec = list(leaf.shape), self._spec(leaf)
        count, _ = shape.pop(self.axis), spec.pop(self.axis)
        return [_abstract(leaf, shape, spec)] * count

    def _spec(self, leaf: Abstract) -> list[Any]:
        """The axes of the mesh that divide each axis of a leaf."""
        spec = leaf.sharding.spec
        return [*spec, *[None] * (leaf.ndim - len(spec))]


def _abstract(like: Abstract, shape: Sequence[int], spec: Sequence[Any]) -> Abstract:
    sharding = NamedSharding(like.sharding.mesh, PartitionSpec(*spec))
    return shape_struct(tuple(shape), like.dtype, sharding)


def _shapes(state: Any) -> Any:
    """A state's arrays as shapes with their shardings."""
    return jax.tree.map(lambda x: shape_struct(x.shape, x.dtype, x.sharding), state)


def _shardings(abstract: Any) -> tuple[Any, tuple[jax.sharding.Sharding, ...]]:
    """Of all leaves, with the structure of their tree."""
    leaves, structure = jax.tree.flatten(abstract)
    return structure, tuple(leaf.sharding for leaf in leaves)


@functools.cache
def _program(
    change: Callable[[Any, int], Any], axis: int, shardings: tuple[Any, tuple[Any, ...]]
) -> Callable[[Any], Any]:
    """`change` of a state, compiled once for results of these shardings."""
    structure, leaves = shardings
    return jax.jit(lambda state: change(state, axis), out_shardings=structure.unflatten(leaves))


def _stack(state: Any, axis: int) -> Any:
    return stack_layers(state, lambda leaves: jnp.stack(leaves, axis))


def _unstack(state: Any, axis: int) -> Any:
    return unstack_layers(state, lambda leaf: jnp.unstack(leaf, axis=axis))
