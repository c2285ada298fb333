"""How parameters are divided: which of their axes lie along which axes of the mesh.

`nn.parameters` names the axes of each parameter. The path of a moment that the optimizer keeps ends
with the parameter's path, so it is divided in the same way.
"""

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import KeyPath

from transformer_jax.nn.parameters import parameter_at
from transformer_jax.parallel.mesh import FSDP, TENSOR

MESH_AXES = {"model": FSDP, "vocab": TENSOR, "heads": TENSOR, "hidden": TENSOR}
"""Axes of `nn.parameters` -> axes of the mesh; an axis that is not here is not divided."""


def partition_spec(path: str) -> PartitionSpec | None:
    """The spec of the parameter at a path; None where the table has none."""
    parameter = parameter_at(path)
    if parameter is None:
        return None
    return PartitionSpec(*(MESH_AXES.get(axis) for axis in parameter.axes))


def shard(abstract: Any, mesh: Mesh) -> Any:
    """Gives each leaf of a tree of `ShapeDtypeStruct` its sharding.

    Replicated are leaves that are no parameters (counters, keys), that have another rank than
    their parameter, or that have one element.

    Raises:
      ValueError: an axis does not divide among the devices; the message says which sizes would.
    """

    def with_sharding(path: KeyPath, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = partition_spec(name)
        if spec is None or len(spec) != leaf.ndim or leaf.size == 1:
            spec = PartitionSpec()
        _require_division(name, leaf.shape, spec, mesh)
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree_util.tree_map_with_path(with_sharding, abstract)


def _require_division(name: str, shape: tuple[int, ...], spec: PartitionSpec, mesh: Mesh) -> None:
    for size, axis in zip(shape, spec, strict=False):
        if axis is not None and size % mesh.shape[axis]:
            fitting = [n for n in range(1, mesh.shape[axis]) if size % n == 0]
            of_vocab = axis == TENSOR and "vocab" in getattr(parameter_at(name), "axes", ())
            how = f" (model.vocab_multiple={mesh.shape[axis]} does)" if of_vocab else ""
            raise ValueError(
                f"{axis} {mesh.shape[axis]} does not divide an axis of {name}, which has the shape "
                f"{list(shape)}; set {axis} to one of {fitting}, or make the {size} a multiple of "
                f"{mesh.shape[axis]}{how}"
            )
