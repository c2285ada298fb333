# SPDX-License-Identifier: Apache-2.0
"""Costs of a compiled program: FLOPs of products, bytes and integer operations of its kernels, and
bytes and times of its collectives.

A kernel is a top-level instruction. A fusion is one kernel, which reads its operands from memory
and writes its results there. A kernel in a loop counts as often as the loop runs.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from transformer_jax.lab.plan.hlo import Computation, HloArray, HloInstruction, parse_ints
from transformer_jax.parallel.sharding import slice_of
from transformer_jax.runtime.accelerators import Accelerator

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
)
BETWEEN_SLICES = "between slices"
"""Kind of the transfers between slices of TPUs, which pass through their hosts."""

_FREE_OPCODES = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("partition-id", "replica-id", "opt-barrier", "copy-done", "async-done", "async-update"),
    *("domain", "add-dependency", "custom-call-done", "send-done", "recv-done", "slice-done"),
    "fusion-done",
}
_CALLED = {
    "while": ("body",),
    "conditional": ("true_computation", "branch_computations"),  # the first branch is counted
    **dict.fromkeys(("call", "async-start"), ("to_apply", "calls", "called_computations")),
}
"""Attributes that name the computations that an instruction runs, by opcode."""
_FREE_CALLS = re.compile(r'custom_call_target="(AllocateBuffer|\w*Bitcast|Sharding)"')
# Of a dot, or of a call of cuBLAS.
_CONTRACTED = re.compile(r'\blhs_contracting_(?:dims=\{|dimensions":\[)([^\]}]*)')
_TRANSFERS = ("copy-start", "slice-start")
_SLICES = ("dynamic-slice", "gather", "slice")
_RAGGED = "ragged-dot-none"  # prefix of TPUs' products of rows with one of several matrices each
_SPLASH = "splash_mha_"  # prefix of the calls of splash attention, TPUs' fused attention
_MATRIX_UNIT = 128  # width of a TPU's matrix unit

_DTYPES = {"bf16": "bfloat16", "f16": "float16", "s8": "int8", "u8": "int8"}


@dataclasses.dataclass(frozen=True)
class KernelCost:
    """A kernel, and how often it runs in a step.

    Attributes:
      instruction: in the program.
      times: number of runs in a step.
      flops: of the products in one run.
      dtype: of the products' operands, a key of `Accelerator.peaks`.
      nbytes: read from and written to the device's memory in one run.
      integer_ops: 32-bit operations in one run; a rotation counts as one.
      cycles: the compiler's estimate for one run; None if it gives none.
      is_opaque: True for another library's kernel, whose cost is unknown.
      is_transfer: True if it only moves bytes while other kernels run.
    """

    instruction: HloInstruction
    times: int
    flops: int
    dtype: str
    nbytes: int
    integer_ops: int
    cycles: int | None
    is_opaque: bool
    is_transfer: bool


def executions(
    entry: Computation, loops: int, times: int = 1
) -> Iterator[tuple[HloInstruction, int]]:
    """Yields the instructions that run by themselves, in the entry and in what it calls, and how
    often they run in a step. A loop of unknown length counts as `loops` runs."""
    for instruction in entry.values():
        keys = _CALLED.get(instruction.opcode)
        inner = instruction.called(*keys) if keys else {}
        runs = (_trip_count(instruction) or loops) if instruction.opcode == "while" else 1
        if inner:
            yield from executions(inner, loops, times * runs)
        else:
            yield instruction, times


def _trip_count(loop: HloInstruction) -> int | None:
    """Number of times that a loop runs; None if unknown.

    A note of the compiler says it, or else the condition: loops of known length in JAX compare a
    counter with a constant.
    """
    note = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes)
    if note:
        return int(note[1])
    for root in loop.called("condition").values():
        if root.is_root and root.opcode == "compare" and "direction=LT" in root.attributes:
            limit = root.operands[1]
            return int(limit.arguments) if limit.opcode == "constant" else None
    return None


def kernel_costs(entry: Computation, in_memory: frozenset[int], loops: int = 1) -> list[KernelCost]:
    """Costs of all kernels of a program except collectives.

    Args:
      in_memory: numbers of the memory spaces whose traffic counts as the device's bandwidth.
      loops: number of runs of a loop of unknown length.
    """
    costs = []
    for instruction, times in executions(entry, loops):
        if (
            instruction.opcode in _FREE_OPCODES
            or _FREE_CALLS.search(instruction.attributes)
            or collective_kind(instruction)
        ):
            continue
        flops, dtype = product_flops(instruction)
        # Longer estimates have overflowed.
        estimate = re.search(r'"estimated_cycles":"(\d{1,12})"', instruction.attributes)
        cycles = int(estimate[1]) if estimate else None
        kernel = KernelCost(
            instruction=instruction,
            times=times,
            flops=flops,
            dtype=dtype,
            nbytes=_traffic(instruction, in_memory),
            integer_ops=integer_ops(instruction),
            cycles=cycles,
            is_opaque=instruction.opcode == "custom-call" and not flops and cycles is None,
            is_transfer=instruction.opcode in _TRANSFERS,
        )
        # Counters of loops and other scalars cost nothing.
        size = max(array.size for array in instruction.arrays)
        if size > 1 or kernel.cycles or kernel.nbytes > 64:
            costs.append(kernel)
    return costs


def collective_kind(instruction: HloInstruction) -> str | None:
    """Kind of the collective that an instruction starts.

    "done" if the instruction ends a collective, None if it is something else.
    """
    for kind in COLLECTIVES:
        if instruction.opcode.startswith(kind):
            return "done" if instruction.opcode.endswith("-done") else kind
    if instruction.opcode in ("send", "recv"):
        return BETWEEN_SLICES if instruction.opcode == "send" else "done"
    if instruction.opcode == "fusion":
        for part in instruction.inner.values():
            kind_of_part = collective_kind(part)
            if kind_of_part:
                return kind_of_part
    return None


def _traffic(instruction: HloInstruction, in_memory: frozenset[int]) -> int:
    """Bytes that a kernel reads and writes, or that a transfer moves."""
    operands = instruction.operands
    if instruction.opcode in _TRANSFERS:  # its result includes the operand
        return instruction.nbytes - sum(operand.nbytes for operand in operands)
    total: float = _bytes_written(instruction, in_memory)
    users = list(instruction.inner.values()) or [instruction]
    # Inside a fusion, operand i is the instruction "parameter(i)".
    parameters = {user.arguments: user for user in users if user.opcode == "parameter"}
    for index, operand in enumerate(operands):
        if operand not in operands[:index]:  # an array that is given twice is read once
            nbytes = _bytes_read(parameters.get(str(index), operand), users)
            total += min(_bytes_of(operand.arrays, in_memory), nbytes)
    return int(total)


def _bytes_of(arrays: Sequence[HloArray], in_memory: frozenset[int]) -> int:
    return sum(array.nbytes for array in arrays if array.space in in_memory)


def _bytes_written(instruction: HloInstruction, in_memory: frozenset[int]) -> int:
    """Bytes of the results; of an array that is updated in place, of the part that changes."""
    arrays = instruction.arrays
    if instruction.opcode == "fusion-start":  # its operands, its results, and a context
        arrays = arrays[len(instruction.operands) : -1]
    root = next((part for part in instruction.inner.values() if part.is_root), instruction)
    results = root.operands if root.opcode == "tuple" else (root,)
    total = _bytes_of(arrays, in_memory)
    for array, result in zip(arrays, results, strict=False):
        if result.opcode == "dynamic-update-slice":  # operand 1 is the part that changes
            total += _bytes_of(result.operands[1].arrays, in_memory) - _bytes_of([array], in_memory)
    return total


def _bytes_read(array: HloInstruction, users: Sequence[HloInstruction]) -> float:
    """Bytes read of an array that is sliced or gathered from; infinite if all of it is read."""
    total: float = 0
    for user in users:
        if array not in user.operands:
            continue
        if user.operands[0] is not array or array in user.operands[1:]:  # as indices or an update
            return math.inf
        if user.opcode == "bitcast":  # another shape of the same bytes
            total += _bytes_read(user, users)
        elif user.opcode in _SLICES:
            total += user.nbytes
        elif user.opcode != "dynamic-update-slice":
            return math.inf
    return total


def product_flops(instruction: HloInstruction) -> tuple[int, str]:
    """FLOPs of all products in a kernel, and the dtype of the largest product's operands."""
    products = [product_flops(part) for part in instruction.inner.values()]
    products.append((_instruction_flops(instruction), _dtype(instruction)))
    return sum(flops for flops, _ in products), max(products)[1]


def _factors(instruction: HloInstruction) -> list[HloArray]:
    """The two arrays that a product multiplies; of attention, queries and keys."""
    first = 0
    if instruction.name.startswith(_SPLASH):
        first = 2  # after the order of the blocks and their mask
    elif instruction.name.startswith(_RAGGED):
        first = -2  # after the sizes of the groups
    factors = instruction.operands[first:][:2]
    return [operand.arrays[0] for operand in factors if operand.arrays]


def _instruction_flops(instruction: HloInstruction) -> int:
    factors = _factors(instruction)
    size = instruction.arrays[0].size if instruction.arrays else 0
    if instruction.opcode == "dot" or re.search(r"\$gemm|\$lt\$matmul", instruction.attributes):
        contracted = _CONTRACTED.search(instruction.attributes)
        axes = parse_ints(contracted[1]) if contracted else ()
        return 2 * size * math.prod(factors[0].dims[axis] for axis in axes)
    if instruction.opcode == "convolution":
        return 2 * size * _contracted_by_convolution(instruction)
    if instruction.opcode != "custom-call":
        return 0
    if instruction.name.startswith(_RAGGED):
        rows, width = factors[0].dims
        result = instruction.arrays[0].dims
        # Rows with one of several matrices each, or else the gradient of the matrices.
        return 2 * (size * width if len(result) == 2 else rows * math.prod(result[1:]))
    return _attention_flops(instruction)


def _contracted_by_convolution(instruction: HloInstruction) -> int:
    """Multiplications for each output of a convolution, the form of products on TPUs.

    Batch axes are spatial axes there, dilated so that each output meets one position of the window.
    """
    left, right = (factor.dims for factor in _factors(instruction))
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    if not labels:
        return 0
    count = right[labels[2].index("i")]
    window = re.search(r"window=\{size=([\dx]+)([^}]*)", instruction.attributes)
    if window and "_dilate" not in window[2]:
        for axis, size in enumerate(parse_ints(window[1])):
            count *= min(size, left[labels[1].index(str(axis))])
    return count


def _attention_flops(instruction: HloInstruction) -> int:
    """FLOPs of fused attention: two products forward, five backward; 0 for other calls.

    cuDNN computes all blocks. Splash skips the blocks that its mask marks with 0, and a head of
    fewer elements than the matrix unit is wide takes as long as one of that width.
    """
    visited = Fraction(1)  # of all blocks; the program may not say
    is_splash = instruction.name.startswith(_SPLASH)
    if not is_splash and "$fmha" not in instruction.attributes:
        return 0
    query, key = (factor.dims for factor in _factors(instruction))
    if is_splash:
        is_backward = instruction.name.startswith(_SPLASH + "d")  # dq, dkv
        size = math.prod(query[:-1]) * max(query[-1], _MATRIX_UNIT)
        length = key[-2]
        mask = instruction.operands[1]
        blocks = parse_ints(mask.arguments) if mask.opcode == "constant" else ()
        if blocks:
            visited = Fraction(sum(block > 0 for block in blocks), len(blocks))
    else:
        is_backward = "Backward" in instruction.attributes
        size = math.prod(query)
        length = key[1]
    products = 5 if is_backward else 2
    return int(visited * products * 2 * size * length)


def _dtype(instruction: HloInstruction) -> str:
    """Dtype of a product's operands; "tensorfloat32" for float32 that the hardware may round."""
    factors = _factors(instruction)
    dtype = factors[0].dtype if factors else "f32"
    if "algorithm=dot_bf16_bf16_f32" in instruction.attributes:
        return "bfloat16"  # its operands are rounded when they are read
    exact = re.search(
        r"operand_precision=\{highest|algorithm=dot_f32_f32_f32\b", instruction.attributes
    )
    return "tensorfloat32" if dtype == "f32" and not exact else _DTYPES.get(dtype, "float32")


def integer_ops(kernel: HloInstruction) -> int:
    """32-bit operations that make random bits. A rotation (two shifts, one or) counts as one."""
    total = 0
    for instruction in kernel.inner.values():
        mixes = instruction.opcode in ("xor", "add", "shift-left")
        if mixes and instruction.arrays[0].dtype == "u32":
            total += instruction.arrays[0].size
        total += integer_ops(instruction)
    return total


class Collective(NamedTuple):
    """All runs of a collective operation in a step.

    Attributes:
      kind: "all-reduce", "all-gather", "reduce-scatter", "all-to-all" or "collective-permute".
      axes: axes of the mesh along which the devices of a group differ, joined by "+".
      times: number of runs in a step.
      bytes_per_device: sent by a device, if the devices form a ring.
      ms: at the speed of the slowest link on the way.
    """

    kind: str
    axes: str
    times: int
    bytes_per_device: int
    ms: float


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
    seconds_inside = _bytes_sent(kind, whole, count // slices) / accelerator.interconnect
    # Each device of a slice sends its part to the other slices.
    seconds_between = _bytes_sent(kind, whole / (count // slices), slices) / accelerator.network
    nbytes = round(times * _bytes_sent(kind, whole, count))
    ms = 1e3 * times * max(seconds_inside, seconds_between)
    return Collective(kind, _axes_of(group, mesh), times, nbytes, ms)


def _between_slices(
    instruction: HloInstruction, times: int, mesh: Mesh, accelerator: Accelerator
) -> Collective:
    """Transfer from a device to its host for other slices: the first array of a `send`."""
    transfer = re.search(r'_xla_megascale_transfer_type="(\w+)"', instruction.attributes)
    kind = transfer[1].lower().replace("_", "-") if transfer else "send"
    slices = list(map(slice_of, mesh.devices.flat))
    _, first_of_each = np.unique(slices, return_index=True)
    axes = _axes_of(first_of_each, mesh)
    nbytes = times * instruction.arrays[0].nbytes
    ms = 1e3 * nbytes / accelerator.network
    return Collective(f"{kind} {BETWEEN_SLICES}", axes, times, nbytes, ms)


def _bytes_sent(kind: str, whole: float, count: int) -> float:
    """Bytes that each of `count` devices sends for an array of `whole` bytes."""
    if kind == "collective-permute":
        return whole if count > 1 else 0
    # In a ring, an all-reduce is a reduce-scatter and an all-gather.
    return whole * (count - 1) / count * (2 if kind == "all-reduce" else 1)


def _first_group(attributes: str, size: int) -> np.ndarray:
    """Indices, in the mesh, of the first group of devices that communicate; all if none is named.

    HLO names groups in three ways: `{{0,1},{2,3}}` (permutations: pairs), `[2,2]<=[4]T(0)` (rows
    of a table), and `mesh['data'=2,'fsdp'=2] {'fsdp'}` (axes of a mesh).
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
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]+)\}", attributes)
    return np.array(parse_ints(listed[1])) if listed else np.arange(size)


def _group_along(axes: str, chosen: str) -> np.ndarray:
    """First group along axes such as `'fsdp':(1)2` of a mesh such as `'data'=2,'fsdp'=4`."""
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes)}
    parts = {
        name: (int(before or 1), int(size or sizes[name]))
        for name, before, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", chosen)
    }
    # Each axis becomes three: before the part, the part that the group spans, and after it.
    shape: list[int] = []
    for name, size in sizes.items():
        before, part = parts.get(name, (1, 1))
        shape += [before, part, size // before // part]
    index = (0, slice(None), 0) * len(sizes)
    return np.arange(math.prod(shape)).reshape(shape)[index].ravel()


def _axes_of(group: np.ndarray, mesh: Mesh) -> str:
    coordinates = np.unravel_index(group, mesh.devices.shape)
    axes = zip(mesh.axis_names, coordinates, strict=True)
    return "+".join(name for name, along in axes if len(np.unique(along)) > 1)
