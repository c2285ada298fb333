"""Which axes of a parameter are divided along which axes of the mesh.

Every parameter of every model matches exactly one rule by the end of its path. What the optimizer
keeps of a parameter has the parameter's path at its own end, and so is divided like it.
"""

import re
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.parallel.mesh import FSDP, TENSOR

RULES = (
    (r"embedding/table", PartitionSpec(TENSOR, FSDP)),  # [V, D]
    (r"projection/table", PartitionSpec(TENSOR, FSDP)),  # [V, D]
    (r"positions/table", PartitionSpec(None, FSDP)),  # [L, D]
    (r"positions/bucket_biases", PartitionSpec(None, TENSOR)),  # [buckets, H]
    (r"relation/(keys|values)", PartitionSpec(None, None)),  # [R, K]
    (r"token_types", PartitionSpec(None, FSDP)),  # [types, D]
    (r"(query|key|value)/kernel", PartitionSpec(FSDP, TENSOR, None)),  # [D, H, K]
    (r"norm_(query|key)/scale", PartitionSpec(None)),  # [K]
    (r"(query|key|value)/bias", PartitionSpec(TENSOR, None)),  # [H, K]
    (r"output/kernel", PartitionSpec(TENSOR, None, FSDP)),  # [H, V, D]
    (r"(inner|gate)/kernel", PartitionSpec(FSDP, TENSOR)),  # [D, F]
    (r"(inner|gate)/bias", PartitionSpec(TENSOR)),  # [F]
    (r"outer/kernel", PartitionSpec(TENSOR, FSDP)),  # [F, D]
    (r"(output|outer)/bias", PartitionSpec(FSDP)),  # [D]
    (r"(transform|pooler)/kernel", PartitionSpec(FSDP, None)),  # [D, D]
    (r"(transform|pooler)/bias", PartitionSpec(FSDP)),  # [D]
    (r"prediction_head/bias", PartitionSpec(TENSOR)),  # [V]
    (r"classifier/kernel", PartitionSpec(FSDP, None)),  # [D, classes]
    (r"classifier/bias", PartitionSpec(None)),  # [classes]
    (r"norm(_before|_after)?/(scale|bias)", PartitionSpec(FSDP)),  # [D]
)
"""(end of a path, as a regular expression; the parameter's PartitionSpec)."""


def matching_specs(path: str) -> list[PartitionSpec]:
    """The specs of all rules that the end of a path matches."""
    return [spec for end, spec in RULES if re.search(rf"(^|_|/){end}$", path)]


def shard(abstract: Any, mesh: Mesh) -> Any:
    """Gives each leaf of a tree of `ShapeDtypeStruct` its sharding.

    Leaves that no rule matches (counters, keys), that are no longer of the parameter's rank, or of
    one element are held whole by every device.

    Raises:
      ValueError: an axis does not divide among the devices; the message says which sizes would.
    """

    def with_sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        specs = [spec for spec in matching_specs(name) if len(spec) == leaf.ndim]
        spec = specs[0] if specs and leaf.size > 1 else PartitionSpec()
        _require_division(name, leaf.shape, spec, mesh)
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree_util.tree_map_with_path(with_sharding, abstract)


def _require_division(name, shape, spec, mesh):
    for size, axis in zip(shape, spec, strict=False):
        if axis is not None and size % mesh.shape[axis]:
            fitting = [n for n in range(1, mesh.shape[axis]) if size % n == 0]
            raise ValueError(
                f"{axis} {mesh.shape[axis]} does not divide an axis of {name}, which has the shape "
                f"{list(shape)}; set {axis} to one of {fitting}, or make the {size} a multiple of "
                f"{mesh.shape[axis]}"
            )
