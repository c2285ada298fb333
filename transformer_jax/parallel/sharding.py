"""The mesh: how many devices share the rows of a batch, the parameters, and each layer.

Three axes. Devices along `data` hold the same parameters and different rows; along `fsdp`,
different rows and each a part of the parameters and of the optimizer's state (Rajbhandari et al.
2020); along `tensor`, the same rows and each a part of every layer: heads, hidden units,
vocabulary (Shoeybi et al. 2019).
"""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import KeyPath

from transformer_jax.nn.parameters import parameter_at
from transformer_jax.ranges import OneOf, Range, check_fields

DATA, FSDP, TENSOR = AXES = ("data", "fsdp", "tensor")
ROWS = PartitionSpec((DATA, FSDP))
"""The spec of an array whose first axis is the batch's rows."""

Devices = Annotated[int, Range(1, 10**6)]


@dataclasses.dataclass(frozen=True)
class ParallelConfig:
    """How a run is divided among devices.

    Attributes:
      engine: "pmap" (data parallelism over the devices of one machine), "jit" (over the mesh, on
        any number of machines), or "auto": pmap for plain data parallelism over several devices of
        one process, else jit.
      data: devices that hold full copies of the model and divide the rows of a batch; None: all
        that `fsdp` and `tensor` leave.
      fsdp: devices that divide parameters, optimizer state and rows.
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
    tensor: Devices = 1
    heartbeat_seconds: Annotated[int, Range(1, 604_800)] = 100
    preemption_notice: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)


def make_mesh(config: ParallelConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh that `config` asks for, of `devices` or else of all devices of the job.

    Raises:
      ValueError: the axes do not multiply to the number of devices, or `tensor` would spread over
        machines; the message says what would fit.
    """
    given, devices = devices is not None, list(devices or jax.devices())
    shared = config.fsdp * config.tensor
    if len(devices) % shared:
        raise ValueError(
            f"fsdp {config.fsdp} x tensor {config.tensor} do not divide the {len(devices)} devices "
            f"here; their product must be one of {_divisors(len(devices))}"
        )
    data = config.data or len(devices) // shared
    if data * shared != len(devices):
        raise ValueError(
            f"data {data} x fsdp {config.fsdp} x tensor {config.tensor} are {data * shared} "
            f"devices; here are {len(devices)}: set data to {len(devices) // shared} or none"
        )
    if not given and jax.local_device_count() % config.tensor:
        raise ValueError(
            f"tensor {config.tensor} does not divide the {jax.local_device_count()} devices of a "
            f"process; it must be one of {_divisors(jax.local_device_count())}"
        )
    # Explicit axes, the default, would make shardings part of the types inside the model.
    types = (AxisType.Auto,) * len(AXES)
    shape = (data, config.fsdp, config.tensor)
    if len({slice_of(device) for device in devices}) > 1:
        return Mesh(_over_slices(shape, devices), AXES, axis_types=types)
    return jax.make_mesh(shape, AXES, axis_types=types, devices=devices)


def mesh_for_use(config: ParallelConfig) -> Mesh:
    """The mesh on which a trained run is used: the config's, or data parallelism alone where the
    devices here cannot be divided in that way."""
    try:
        return make_mesh(dataclasses.replace(config, data=None))
    except ValueError:
        return make_mesh(ParallelConfig())


def slice_of(device: jax.Device) -> int:
    """Names the devices that fast links join: a slice of TPUs, the GPUs of a host. Others reach
    them over the network."""
    return device.process_index if _is_gpu(device) else getattr(device, "slice_index", 0)


def _over_slices(shape: tuple[int, int, int], devices: Sequence[jax.Device]) -> np.ndarray:
    """Devices in a mesh whose `data` axis, and where it is too short `fsdp`, leads from slice to
    slice; within one they lie as `jax.make_mesh` lays them.

    Raises:
      ValueError: the slices have unequal sizes, or `tensor` would spread over them.
    """
    slices = collections.Counter(map(slice_of, devices))
    sizes = set(slices.values())
    data, fsdp, tensor = shape
    if len(sizes) > 1 or min(sizes) % tensor:
        raise ValueError(
            f"tensor {tensor} must divide each of {len(slices)} slices of {sorted(sizes)} devices, "
            "which must all be of one size; lower tensor, or leave devices out"
        )
    outer_data = math.gcd(data, len(slices))
    outer = (outer_data, len(slices) // outer_data, 1)
    inner = tuple(size // parts for size, parts in zip(shape, outer, strict=True))
    return mesh_utils.create_hybrid_device_mesh(
        inner,
        outer,
        devices,
        process_is_granule=_is_gpu(devices[0]),
        allow_split_physical_axes=True,
    )


def row_shards(mesh: Mesh) -> int:
    """Parts that the rows of a batch are divided into."""
    return mesh.shape[DATA] * mesh.shape[FSDP]


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def place_own_rows(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """A batch on the devices, each process giving the rows that it has."""
    sharding = NamedSharding(mesh, ROWS)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }


def place_like(params: Any, batch: Any) -> Any:
    """A batch with its rows divided among the devices that hold `params`.

    The batch itself where the parameters are not spread over a mesh.

    Args:
      params: a tree of arrays.
      batch: a tree of NumPy arrays, the whole batch in every process.
    """
    mesh = mesh_of(params)
    if mesh is None:
        return batch
    sharding = NamedSharding(mesh, ROWS)
    return jax.tree.map(
        lambda rows: jax.make_array_from_callback(rows.shape, sharding, rows.__getitem__), batch
    )


def round_up_rows(rows: int, params: Any) -> int:
    """`rows`, or the next higher number that divides among the devices that hold `params`."""
    mesh = mesh_of(params)
    shards = 1 if mesh is None else row_shards(mesh)
    return -(-rows // shards) * shards


def mesh_of(params: Any) -> Mesh | None:
    """The mesh that the arrays of a tree are spread over; None where there is none."""
    leaves = jax.tree.leaves(params)
    sharding = getattr(leaves[0], "sharding", None) if leaves else None
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        return None
    return sharding.mesh


def _is_gpu(device: jax.Device) -> bool:
    return getattr(device, "platform", "") == "gpu"


def _divisors(count: int) -> str:
    return ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)


# FOLDED parallel.rules: How parameters are divided: which of their axes lie along which axes of
# the mesh. `nn.parameters` names the axes of each parameter. The path of a moment that the
# optimizer keeps ends with the parameter's path, so it is divided in the same way.


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
