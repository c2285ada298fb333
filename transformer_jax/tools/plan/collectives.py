"""What devices send each other in a step: kind, bytes, and along which axes of the mesh."""

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np
from jax.sharding import Mesh

from transformer_jax.parallel.sharding import slice_of
from transformer_jax.runtime.accelerators import Accelerator
from transformer_jax.tools.plan.costs import BETWEEN_SLICES, Visit, exchange_kind, visits
from transformer_jax.tools.plan.hlo import Array, HloInstruction, Module, numbers


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One exchange, and how often it runs in a step.

    Attributes:
      kind: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute".
      axes: of the mesh, along which the devices of a group differ.
      op_name: where the source asked for it.
      times: it runs in a step.
      nbytes: that a device sends, once, if devices stand in a ring.
      seconds: of all times, at the speed of the slowest link that it must cross.
    """

    kind: str
    axes: tuple[str, ...]
    op_name: str
    times: int
    nbytes: float
    seconds: float


def exchanges(
    module: Module, mesh: Mesh, accelerator: Accelerator, loops: int = 1
) -> list[Exchange]:
    """All exchanges of a program compiled for the devices of a mesh; a loop of unknown length runs
    `loops` times."""
    found = []
    for visit in visits(module, loops):
        kind = exchange_kind(module, visit.instruction)
        if kind and kind != "done":
            found.append(_exchange(module, visit, kind, mesh, accelerator))
    return [one for one in found if one.axes]


def _exchange(
    module: Module, visit: Visit, kind: str, mesh: Mesh, accelerator: Accelerator
) -> Exchange:
    one, scope = visit.instruction, visit.computation
    if kind == BETWEEN_SLICES:
        return _between_slices(visit, mesh, accelerator)
    if one.opcode == "fusion":
        scope = module.computations[one.called("calls") or ""]
        one = next(each for each in scope.values() if each.opcode.startswith(kind))
    whole = max(_nbytes(one.arrays), _nbytes(_operands(one, scope)))
    if one.opcode.endswith("-start"):  # a tuple of the operands and of the results
        given = _nbytes(_operands(one, scope))
        whole = max(given, _nbytes(one.arrays) - given)
    group = _group(one.attributes, mesh.size)
    count, slices = len(group), len({slice_of(mesh.devices.flat[place]) for place in group})
    inside = _sent(kind, whole, count // slices) / accelerator.interconnect
    between = _sent(kind, whole / (count // slices), slices) / accelerator.network
    return Exchange(
        kind=kind,
        axes=_axes(group, mesh),
        op_name=visit.instruction.op_name or one.op_name,
        times=visit.times,
        nbytes=_sent(kind, whole, count),
        seconds=visit.times * max(inside, between),
    )


def _between_slices(visit: Visit, mesh: Mesh, accelerator: Accelerator) -> Exchange:
    """What a device hands to its host for other slices: the first array of a `send`."""
    one = visit.instruction
    what = re.search(r'_xla_megascale_transfer_type="(\w+)"', one.attributes)
    kind = what[1].lower().replace("_", "-") if what else "send"
    slices = np.vectorize(slice_of)(mesh.devices)
    axes = [
        name
        for axis, name in enumerate(mesh.axis_names)
        if (slices != np.take(slices, [0], axis)).any()
    ]
    nbytes = one.arrays[0].nbytes
    return Exchange(
        kind=f"{kind} {BETWEEN_SLICES}",
        axes=tuple(axes),
        op_name=one.op_name,
        times=visit.times,
        nbytes=nbytes,
        seconds=visit.times * nbytes / accelerator.network,
    )


def _operands(one: HloInstruction, scope: dict[str, HloInstruction]) -> list[Array]:
    return [array for name in one.operands if name in scope for array in scope[name].arrays]


def _nbytes(arrays: Sequence[Array]) -> int:
    return sum(array.nbytes for array in arrays)


def _sent(kind: str, whole: float, count: int) -> float:
    """Bytes that each of `count` devices sends for an array of `whole` bytes."""
    if kind == "collective-permute":
        return whole if count > 1 else 0
    return whole * (count - 1) / count * (2 if kind == "all-reduce" else 1)


def _group(attributes: str, size: int) -> np.ndarray:
    """The places in the mesh of the first group of devices that exchange; all if none is named.

    HLO names groups in four ways: `{{0,1},{2,3}}`, `[2,2]<=[4]T(0)` (rows of a table),
    `mesh['data'=2,'fsdp'=2] {'fsdp'}` (axes of a mesh), and pairs for permutations.
    """
    if table := re.search(
        r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes
    ):
        rows, sizes = numbers(table[1]), numbers(table[2])
        places = np.arange(math.prod(sizes)).reshape(sizes)
        return places.transpose(numbers(table[3]) if table[3] else None).reshape(rows)[0]
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", attributes):
        return _along(mesh[1], mesh[2])
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", attributes):
        return np.array(numbers(listed[1]))
    if pairs := re.search(r"source_target_pairs=\{((?:\{[\d,]+\},?)+)\}", attributes):
        return np.array(numbers(pairs[1])[:2])
    return np.arange(size)


def _along(axes: str, chosen: str) -> np.ndarray:
    """Of a mesh such as `'data'=2,'fsdp'=4`, the first group along axes such as `'fsdp':(1)2`."""
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes)}
    shape: list[int] = []
    group_axes: list[int] = []
    parts = {
        name: (int(before or 1), int(size or sizes[name]))
        for name, before, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", chosen)
    }
    for name, size in sizes.items():
        before, part = parts.get(name, (1, 1))
        if name in parts:
            group_axes.append(len(shape) + 1)
        shape += [before, part, size // before // part]
    places = np.arange(math.prod(shape)).reshape(shape)
    index = [slice(None) if axis in group_axes else 0 for axis in range(len(shape))]
    return places[tuple(index)].ravel()


def _axes(group: np.ndarray, mesh: Mesh) -> tuple[str, ...]:
    coordinates = np.unravel_index(group, mesh.devices.shape)
    return tuple(
        name
        for name, along in zip(mesh.axis_names, coordinates, strict=True)
        if len(np.unique(along)) > 1
    )
