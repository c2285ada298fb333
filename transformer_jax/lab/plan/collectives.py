# SPDX-License-Identifier: Apache-2.0
"""Collectives of a step: their kinds, bytes and times, and the axes of the mesh they use."""

import dataclasses
import math
import re

import numpy as np
from jax.sharding import Mesh

from transformer_jax.lab.plan.costs import BETWEEN_SLICES, collective_kind, executions
from transformer_jax.lab.plan.hlo import Computation, HloInstruction, parse_ints
from transformer_jax.parallel.sharding import slice_of
from transformer_jax.runtime.accelerators import Accelerator


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation, and how often it runs in a step.

    Attributes:
      kind: "all-reduce", "all-gather", "reduce-scatter", "all-to-all" or "collective-permute".
      axes: axes of the mesh along which the devices of a group differ.
      times: number of runs in a step.
      nbytes: sent by a device in one run, if the devices form a ring.
      seconds: of all runs, at the speed of the slowest link on the way.
    """

    kind: str
    axes: tuple[str, ...]
    times: int
    nbytes: float
    seconds: float


def collectives(
    entry: Computation, mesh: Mesh, accelerator: Accelerator, loops: int = 1
) -> list[Collective]:
    """All collectives of a program that is compiled for a mesh.

    A loop of unknown length counts as `loops` runs.
    """
    started = []
    for instruction, times in executions(entry, loops):
        kind = collective_kind(instruction)
        if kind == BETWEEN_SLICES:
            started.append(_between_slices(instruction, times, mesh, accelerator))
        elif kind and kind != "done":
            started.append(_collective(instruction, times, kind, mesh, accelerator))
    # Groups of one device exchange nothing.
    return [collective for collective in started if collective.axes]


def _collective(
    instruction: HloInstruction, times: int, kind: str, mesh: Mesh, accelerator: Accelerator
) -> Collective:
    for part in instruction.inner.values():  # of a fusion
        if part.opcode.startswith(kind):
            instruction = part
            break
    # Of operand and result, the larger one is the whole array: the other may be one device's part.
    operand_bytes = sum(operand.nbytes for operand in instruction.operands)
    result_bytes = instruction.nbytes
    if instruction.opcode.endswith("-start"):  # its result is a tuple of operands and results
        result_bytes -= operand_bytes
    whole = max(operand_bytes, result_bytes)
    group = _first_group(instruction.attributes, mesh.size)
    count = len(group)
    slices = len({slice_of(mesh.devices.flat[index]) for index in group})
    inside = _bytes_sent(kind, whole, count // slices) / accelerator.interconnect
    between = _bytes_sent(kind, whole / (count // slices), slices) / accelerator.network
    seconds = times * max(inside, between)
    return Collective(kind, _axes_of(group, mesh), times, _bytes_sent(kind, whole, count), seconds)


def _between_slices(
    instruction: HloInstruction, times: int, mesh: Mesh, accelerator: Accelerator
) -> Collective:
    """Transfer from a device to its host for other slices: the first array of a `send`."""
    transfer = re.search(r'_xla_megascale_transfer_type="(\w+)"', instruction.attributes)
    kind = transfer[1].lower().replace("_", "-") if transfer else "send"
    slices = np.vectorize(slice_of)(mesh.devices)
    axes = tuple(
        name
        for axis, name in enumerate(mesh.axis_names)
        if (slices != np.take(slices, [0], axis)).any()
    )
    nbytes = instruction.arrays[0].nbytes
    seconds = times * nbytes / accelerator.network
    return Collective(f"{kind} {BETWEEN_SLICES}", axes, times, nbytes, seconds)


def _bytes_sent(kind: str, whole: float, count: int) -> float:
    """Bytes that each of `count` devices sends for an array of `whole` bytes."""
    if kind == "collective-permute":
        return whole if count > 1 else 0
    # In a ring, an all-reduce is a reduce-scatter and an all-gather.
    return whole * (count - 1) / count * (2 if kind == "all-reduce" else 1)


def _first_group(attributes: str, size: int) -> np.ndarray:
    """Indices, in the mesh, of the first group of devices that communicate; all if none is named.

    HLO names groups in four ways: `{{0,1},{2,3}}`, `[2,2]<=[4]T(0)` (rows of a table),
    `mesh['data'=2,'fsdp'=2] {'fsdp'}` (axes of a mesh), and pairs for permutations.
    """
    table = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes)
    if table:
        sizes = parse_ints(table[2])
        order = parse_ints(table[3]) if table[3] else None
        indices = np.arange(math.prod(sizes)).reshape(sizes).transpose(order)
        return indices.reshape(parse_ints(table[1]))[0]
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", attributes)
    if mesh:
        return _group_along(mesh[1], mesh[2])
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", attributes)
    if listed:
        return np.array(parse_ints(listed[1]))
    pairs = re.search(r"source_target_pairs=\{((?:\{[\d,]+\},?)+)\}", attributes)
    if pairs:
        return np.array(parse_ints(pairs[1])[:2])
    return np.arange(size)


def _group_along(axes: str, chosen: str) -> np.ndarray:
    """First group along axes such as `'fsdp':(1)2` of a mesh such as `'data'=2,'fsdp'=4`."""
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes)}
    shape: list[int] = []
    group_axes: list[int] = []
    parts = {
        name: (int(before or 1), int(size or sizes[name]))
        for name, before, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", chosen)
    }
    # Each axis becomes three: before the part, the part that the group spans, and after it.
    for name, size in sizes.items():
        before, part = parts.get(name, (1, 1))
        if name in parts:
            group_axes.append(len(shape) + 1)
        shape += [before, part, size // before // part]
    indices = np.arange(math.prod(shape)).reshape(shape)
    index = [slice(None) if axis in group_axes else 0 for axis in range(len(shape))]
    return indices[tuple(index)].ravel()


def _axes_of(group: np.ndarray, mesh: Mesh) -> tuple[str, ...]:
    coordinates = np.unravel_index(group, mesh.devices.shape)
    return tuple(
        name
        for name, along in zip(mesh.axis_names, coordinates, strict=True)
        if len(np.unique(along)) > 1
    )
