# SPDX-License-Identifier: Apache-2.0
"""The mesh of devices, and the sharding of batches, parameters and optimizer state over it.

`AXES` is the table of the mesh's axes. `nn.parameters` names the axes of each parameter. The path
of an optimizer's moment ends with the path of its parameter, so it is sharded in the same way.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer_jax.nn.parameters import map_named, parameter_at
from transformer_jax.nn.per_device import LentAxis
from transformer_jax.ranges import OneOf, Range, check_fields


@dataclasses.dataclass(frozen=True)
class MeshAxis:
    """An axis of the mesh.

    Attributes:
      name: of the axis, and of the field of `parallel` with its size.
      divides: axes of arrays that it divides: "rows" and "sequence" (tokens of a row) of
        activations, others of parameters (`nn.parameters`).
      meaning: what its devices have in common, and what they divide.
    """

    name: str
    divides: tuple[str, ...]
    meaning: str


AXES = (
    MeshAxis("data", ("rows",), "the same parameters, different rows of the batch"),
    MeshAxis(
        "fsdp",
        ("rows", "model"),
        "different rows, and each a part of the parameters and of the optimizer's state "
        "(Rajbhandari et al. 2020)",
    ),
    MeshAxis("expert", ("rows", "experts"), "different rows and experts (Lepikhin et al. 2021)"),
    MeshAxis(
        "sequence", ("sequence",), "the same rows, and each a part of the tokens (Liu et al. 2023)"
    ),
    MeshAxis(
        "tensor",
        ("heads", "hidden", "vocab"),
        "the same rows, and each a part of every layer (Shoeybi et al. 2019)",
    ),
)
"""Axes of the mesh, from those whose devices communicate least to those that communicate most."""
AXIS_NAMES = tuple(axis.name for axis in AXES)
DATA, FSDP, EXPERT, SEQUENCE, TENSOR = AXIS_NAMES


def dividing_axes(role: str) -> tuple[str, ...]:
    """Axes of the mesh that divide an axis of arrays, such as "rows"."""
    return tuple(axis.name for axis in AXES if role in axis.divides)


def spec_of(*roles: str) -> PartitionSpec:
    """Spec of an array with these axes; an axis that the table does not name is not divided.

    Example:
      >>> spec_of("rows", "sequence", "heads", "size")
      PartitionSpec(('data', 'fsdp', 'expert'), 'sequence', 'tensor', None)
    """
    by_role = map(dividing_axes, roles)
    return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in by_role))


ROWS = spec_of("rows")
"""Spec of an array whose first axis is the rows of a batch."""

Devices = Annotated[int, Range(1, 10**6)]


@dataclasses.dataclass(frozen=True)
class ParallelConfig:
    """Division of a run among devices.

    Attributes:
      engine: "pmap" (data parallelism over the devices of one machine), "jit" (over the mesh, on
        any number of machines), or "auto": pmap for plain data parallelism over several devices of
        one process, else jit.
      data: devices that hold full copies of the model and divide the rows of a batch; None: all
        that the other axes leave.
      fsdp: devices that divide parameters, optimizer state and rows.
      expert: devices that divide the experts of a layer, and rows.
      sequence: devices that divide the tokens of each row (context parallelism), for sequences that
        are too long for one device.
      tensor: devices that divide every layer.
      heartbeat_seconds: a process that is silent for this long counts as lost, and the job ends.
      preemption_notice: source of preemption notices: "gce" (Google Cloud, TPUs too), "aws", or the
        path of a file that will appear. Training then saves and stops, as after SIGTERM. None: only
        SIGTERM.

    Raises:
      ValueError: an unknown engine or a size out of range.
    """

    engine: Annotated[str, OneOf("auto", "jit", "pmap")] = "auto"
    data: Devices | None = None
    fsdp: Devices = 1
    expert: Devices = 1
    sequence: Devices = 1
    tensor: Devices = 1
    heartbeat_seconds: Annotated[int, Range(1, 604_800)] = 100
    preemption_notice: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def model_axes(self) -> dict[str, int]:
        """Sizes of all axes except `data`."""
        return {name: getattr(self, name) for name in AXIS_NAMES if name != DATA}


def make_mesh(config: ParallelConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Makes the mesh of a config, of all devices of the job or of those given.

    Raises:
      ValueError: the product of the axes is not the number of devices, or `tensor` would span
        several machines; the message says what would fit.
    """
    is_whole_job = devices is None
    devices = list(devices or jax.devices())
    shared = math.prod(config.model_axes.values())
    if len(devices) % shared:
        raise ValueError(
            f"{_named_sizes(config.model_axes)} cannot divide the {len(devices)} devices here; "
            f"the product must be one of {_divisors(len(devices))}"
        )
    sizes = {DATA: config.data or len(devices) // shared, **config.model_axes}
    if sizes[DATA] * shared != len(devices):
        raise ValueError(
            f"the mesh {_named_sizes(sizes)} has {sizes[DATA] * shared} devices; here are "
            f"{len(devices)}: set data to {len(devices) // shared} or none"
        )
    if is_whole_job and jax.local_device_count() % config.tensor:
        raise ValueError(
            f"tensor {config.tensor} does not divide the {jax.local_device_count()} devices of a "
            f"process; it must be one of {_divisors(jax.local_device_count())}"
        )
    # Explicit axes, the default, would make shardings part of the types inside the model.
    types = (AxisType.Auto,) * len(AXES)
    shape = tuple(sizes[name] for name in AXIS_NAMES)
    if len({slice_of(device) for device in devices}) > 1:
        return Mesh(_hybrid_devices(shape, devices), AXIS_NAMES, axis_types=types)
    return jax.make_mesh(shape, AXIS_NAMES, axis_types=types, devices=devices)


def mesh_for_inference(config: ParallelConfig) -> Mesh:
    """Mesh for using a trained run: that of the config, or plain data parallelism if the devices
    here cannot be divided in that way."""
    try:
        return make_mesh(dataclasses.replace(config, data=None))
    except ValueError:
        return make_mesh(ParallelConfig())


def slice_of(device: jax.Device) -> int:
    """Number of the group of devices with fast links among them: a slice of TPUs, or the GPUs of a
    host. Groups communicate over the network."""
    return device.process_index if _is_gpu(device) else getattr(device, "slice_index", 0)


def _hybrid_devices(shape: tuple[int, ...], devices: Sequence[jax.Device]) -> np.ndarray:
    """Arranges devices of several slices: the `data` axis spans the slices, and `fsdp` if `data` is
    too short. Within a slice the order is that of `jax.make_mesh`.

    Raises:
      ValueError: the slices have unequal sizes, or another axis would span several slices.
    """
    slices = collections.Counter(map(slice_of, devices))
    sizes = set(slices.values())
    data, fsdp, *within = shape
    if len(sizes) > 1 or min(sizes) % math.prod(within):
        named = _named_sizes(dict(zip(AXIS_NAMES[2:], within, strict=True)))
        raise ValueError(
            f"{named} must divide each of {len(slices)} slices of {sorted(sizes)} devices, which "
            "must all have the same size; lower these sizes, or use fewer devices"
        )
    # `data` communicates least, so it takes as much of the slow links as it can.
    outer_data = math.gcd(data, len(slices))
    outer = (outer_data, len(slices) // outer_data, *(1 for _ in within))
    inner = tuple(size // parts for size, parts in zip(shape, outer, strict=True))
    return mesh_utils.create_hybrid_device_mesh(
        inner,
        outer,
        devices,
        process_is_granule=_is_gpu(devices[0]),
        allow_split_physical_axes=True,
    )


def row_shards(mesh: Mesh) -> int:
    """Number of parts into which the rows of a batch are divided."""
    return math.prod(mesh.shape[name] for name in dividing_axes("rows"))


def process_part(mesh: Mesh) -> tuple[int, int]:
    """(index, count): the part of a batch's rows that this process reads, and the number of parts.

    Processes whose devices have the same rows, as along `sequence`, read the same part.

    Raises:
      ValueError: processes share only some of their rows.
    """
    of_row = mesh.devices.reshape(row_shards(mesh), -1)
    groups = [frozenset(device.process_index for device in devices) for devices in of_row]
    parts = list(dict.fromkeys(groups))
    # Parts must be disjoint, and of as many rows each.
    if len(set().union(*parts)) != sum(map(len, parts)) or len(groups) % len(parts):
        raise ValueError(
            "some processes share a part of their rows; choose sizes of sequence and tensor whose "
            "product divides the devices of a process, or is a multiple of them"
        )
    process = jax.process_index()
    return next(i for i, part in enumerate(parts) if process in part), len(parts)


@dataclasses.dataclass(frozen=True)
class LentMesh:
    """Lends layers the axes of a mesh, by the axis of arrays that they divide
    (`nn.per_device.use_axes`)."""

    mesh: Mesh

    def __call__(self, role: str) -> LentAxis | None:
        names = [name for name in dividing_axes(role) if self.mesh.shape[name] > 1]
        if not names:
            return None
        size = math.prod(self.mesh.shape[name] for name in names)
        return LentAxis(names[0] if len(names) == 1 else tuple(names), size, self.shard_map)

    def shard_map(self, function: Callable, in_axes: Any, out_axes: Any) -> Callable:
        """Makes a function of whole arrays (`nn.per_device.ShardMap`)."""
        specs = jax.tree.map(lambda axes: spec_of(*axes.split()), (in_axes, out_axes))
        # The function adds up what it must; JAX would refuse results that only it knows are equal.
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False
        )

    def call(
        self, function: Callable, heads: tuple[jax.Array, ...], rows: tuple[jax.Array, ...]
    ) -> jax.Array:
        """Calls a function on each device's shard (`nn.per_device.ShardedCall`)."""
        axes = ("rows tokens heads", "rows")
        return self.shard_map(function, axes, axes[0 if heads else 1])(heads, rows)


def replicated(mesh: Mesh) -> NamedSharding:
    """Sharding of an array that every device has in full."""
    return NamedSharding(mesh, PartitionSpec())


def place_local_rows(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Moves a batch to the devices; `batch` has the rows of this process (`process_part`)."""
    sharding = NamedSharding(mesh, ROWS)
    _, parts = process_part(mesh)
    return {
        name: jax.make_array_from_process_local_data(
            sharding, rows, (parts * len(rows), *rows.shape[1:])
        )
        for name, rows in batch.items()
    }


def place_like(params: Any, batch: Any) -> Any:
    """Divides the rows of a batch among the devices of `params`.

    Returns the batch unchanged if the parameters have no mesh.

    Args:
      batch: tree of NumPy arrays, the whole batch in every process.
    """
    mesh = mesh_of(params)
    if mesh is None:
        return batch
    sharding = NamedSharding(mesh, ROWS)
    return jax.tree.map(
        lambda rows: jax.make_array_from_callback(rows.shape, sharding, rows.__getitem__), batch
    )


def round_up_rows(rows: int, params: Any) -> int:
    """Rounds up to a multiple of the devices of `params` that divide rows."""
    mesh = mesh_of(params)
    shards = 1 if mesh is None else row_shards(mesh)
    return -(-rows // shards) * shards


def mesh_of(params: Any) -> Mesh | None:
    """Mesh of the arrays of a tree; None if they have none."""
    leaves = jax.tree.leaves(params)
    sharding = getattr(leaves[0], "sharding", None) if leaves else None
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        return None
    return sharding.mesh


def partition_spec(path: str) -> PartitionSpec | None:
    """Spec of the parameter at a path; None if the path is that of no parameter."""
    parameter = parameter_at(path)
    return None if parameter is None else spec_of(*parameter.axes)


def add_shardings(abstract: Any, mesh: Mesh) -> Any:
    """Adds shardings to the leaves of a tree of `ShapeDtypeStruct`.

    A leaf is replicated if it is no parameter (a counter, a key), has another rank than its
    parameter, or has one element.

    Raises:
      ValueError: an axis cannot be divided among the devices; the message says which sizes can.
    """

    def with_sharding(name: str, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        spec = partition_spec(name)
        if spec is None or len(spec) != leaf.ndim or leaf.size == 1:
            spec = PartitionSpec()
        _require_division(name, leaf.shape, spec, mesh)
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return map_named(with_sharding, abstract)


def bytes_per_device(abstract: Any) -> int:
    """Bytes that each device holds of abstract arrays with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(abstract)
    )


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


def _is_gpu(device: jax.Device) -> bool:
    return getattr(device, "platform", "") == "gpu"


def _named_sizes(sizes: Mapping[str, int]) -> str:
    """Text such as "fsdp 2 x tensor 4", without axes of size 1, if there are others."""
    return " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or f"{DATA} 1"


def _divisors(count: int) -> str:
    return ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
