# SPDX-License-Identifier: Apache-2.0
"""Costs of the kernels of a compiled program: FLOPs of products, bytes, integer operations.

A kernel is a top-level instruction. A fusion is one kernel, which reads its operands from memory
and writes its results there. A kernel in a loop counts as often as the loop runs.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from fractions import Fraction

from transformer_jax.lab.plan.hlo import (
    Computation,
    HloArray,
    HloInstruction,
    HloModule,
    parse_ints,
)

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
_FREE_CALLS = re.compile(r'custom_call_target="(AllocateBuffer|\w*Bitcast|Sharding)"')
_TRANSFERS = ("copy-start", "slice-start")
_OVERFLOWED_CYCLES = 10**12  # larger estimates of the compiler have overflowed
_RAGGED = "ragged-dot-none"  # prefix of grouped products on TPUs
_SPLASH = "splash_mha_"  # prefix of its calls
_SPLASH_QUERY = 2  # index of the queries among its operands
_MATRIX_UNIT = 128  # width of a TPU's
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "s8": "int8", "u8": "int8", "f32": "float32"}


@dataclasses.dataclass(frozen=True)
class KernelCost:
    """A kernel, and how often it runs in a step.

    Attributes:
      name: in the program.
      op_name: names of the scopes in the source, as in `HloInstruction`.
      shape: of its results, as "bf16[64,512]".
      times: number of runs in a step.
      flops: of the products in one run.
      dtype: of the products' operands, a key of `Accelerator.peaks`.
      nbytes: read from and written to the device's memory in one run.
      integer_ops: 32-bit operations in one run; a rotation counts as one.
      cycles: the compiler's estimate for one run; None if it gives none.
      is_opaque: True for another library's kernel, whose cost is unknown.
      is_transfer: True if it only moves bytes while other kernels run.
    """

    name: str
    op_name: str
    shape: str
    times: int
    flops: int
    dtype: str
    nbytes: int
    integer_ops: int
    cycles: int | None
    is_opaque: bool
    is_transfer: bool


@dataclasses.dataclass(frozen=True)
class Execution:
    """A top-level instruction, its computation, and how often it runs in a step."""

    instruction: HloInstruction
    computation: Computation
    times: int


def executions(module: HloModule, loops: int) -> Iterator[Execution]:
    """Yields the instructions that run by themselves, in the entry and in what it calls.

    A loop of unknown length counts as `loops` runs.
    """
    return _executions(module, module.computations[module.entry], 1, loops)


def _executions(
    module: HloModule, computation: Computation, times: int, loops: int
) -> Iterator[Execution]:
    for instruction in computation.values():
        inner = None
        runs = 1
        if instruction.opcode == "while":
            inner = instruction.called("body")
            runs = _trip_count(module, instruction) or loops
        elif instruction.opcode == "conditional":  # the first branch is counted
            inner = instruction.called("true_computation", r"branch_computations=\{%?")
        elif instruction.opcode in ("call", "async-start"):
            inner = instruction.called("to_apply", "calls", r"called_computations=\{%?")
        if inner in module.computations:
            yield from _executions(module, module.computations[inner], times * runs, loops)
        else:
            yield Execution(instruction, computation, times)


def _trip_count(module: HloModule, loop: HloInstruction) -> int | None:
    """Number of times that a loop runs; None if unknown.

    A note of the compiler says it, or else the condition: loops of known length in JAX compare a
    counter with a constant.
    """
    note = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes)
    if note:
        return int(note[1])
    condition = module.computations.get(loop.called("condition") or "", {})
    root = next((instruction for instruction in condition.values() if instruction.is_root), None)
    if root is None or root.opcode != "compare" or "direction=LT" not in root.attributes:
        return None
    limit = condition[root.operands[1]]
    return int(limit.arguments) if limit.opcode == "constant" else None


def kernel_costs(module: HloModule, in_memory: frozenset[int], loops: int = 1) -> list[KernelCost]:
    """Costs of all kernels except collectives.

    Args:
      in_memory: numbers of the memory spaces whose traffic counts as the device's bandwidth.
      loops: number of runs of a loop of unknown length.
    """
    costs = []
    for execution in executions(module, loops):
        instruction = execution.instruction
        if (
            instruction.opcode in _FREE_OPCODES
            or _FREE_CALLS.search(instruction.attributes)
            or collective_kind(module, instruction)
        ):
            continue
        inner = module.computations.get(instruction.called("calls") or "", {})
        traffic = _MemoryTraffic(module, execution.computation, in_memory)
        flops, dtype = product_flops(module, instruction, execution.computation)
        estimate = re.search(r'"estimated_cycles":"(\d+)"', instruction.attributes)
        cycles = int(estimate[1]) if estimate else None
        if cycles is not None and cycles >= _OVERFLOWED_CYCLES:
            cycles = None
        kernel = KernelCost(
            name=instruction.name,
            op_name=instruction.op_name,
            shape=", ".join(map(str, instruction.arrays)),
            times=execution.times,
            flops=flops,
            dtype=dtype,
            nbytes=traffic.total(instruction, inner),
            integer_ops=integer_ops(module, inner),
            cycles=cycles,
            is_opaque=instruction.opcode == "custom-call" and not flops and cycles is None,
            is_transfer=instruction.opcode in _TRANSFERS,
        )
        # Counters of loops and other scalars cost nothing.
        size = max(array.size for array in instruction.arrays)
        if size > 1 or kernel.cycles or kernel.nbytes > 64:
            costs.append(kernel)
    return costs


def collective_kind(module: HloModule, instruction: HloInstruction) -> str | None:
    """Kind of the collective that an instruction starts.

    "done" if the instruction ends a collective, None if it is something else.
    """
    for kind in COLLECTIVES:
        if instruction.opcode.startswith(kind):
            return "done" if instruction.opcode.endswith("-done") else kind
    if instruction.opcode in ("send", "recv"):
        return BETWEEN_SLICES if instruction.opcode == "send" else "done"
    if instruction.opcode == "fusion":
        inner = module.computations.get(instruction.called("calls") or "", {})
        for part in inner.values():
            kind_of_part = collective_kind(module, part)
            if kind_of_part:
                return kind_of_part
    return None


@dataclasses.dataclass(frozen=True)
class _MemoryTraffic:
    """Bytes between the device's memory and a kernel."""

    module: HloModule
    computation: Computation
    in_memory: frozenset[int]

    def total(self, instruction: HloInstruction, inner: Computation) -> int:
        """Bytes read and written; of a transfer, whose result includes the operand, bytes moved."""
        if instruction.opcode not in _TRANSFERS:
            return self.read(instruction, inner) + self.written(instruction, inner)
        operands = [
            array for name in instruction.operands for array in self.computation[name].arrays
        ]
        return sum(x.nbytes for x in instruction.arrays) - sum(x.nbytes for x in operands)

    def read(self, instruction: HloInstruction, inner: Computation) -> int:
        """Bytes read of the operands; only the part that is read of arrays that are sliced."""
        total = 0
        for index, name in enumerate(instruction.operands):
            if name not in self.computation or name in instruction.operands[:index]:
                continue
            whole = self._bytes(self.computation[name].arrays)
            part = self._read_part(instruction, inner, index)
            total += whole if part is None else min(whole, part)
        return total

    def written(self, instruction: HloInstruction, inner: Computation) -> int:
        """Bytes of the results; only the part that changes of arrays that are updated in place."""
        arrays = instruction.arrays
        if instruction.opcode == "fusion-start":  # its operands, its results, and a context
            arrays = arrays[len(instruction.operands) : -1]
        root = next((part for part in inner.values() if part.is_root), instruction)
        scope = inner or self.computation
        results = [scope[name] for name in root.operands] if root.opcode == "tuple" else [root]
        if not any(result.opcode == "dynamic-update-slice" for result in results):
            return self._bytes(arrays)
        total = 0
        for array, result in zip(arrays, results, strict=False):
            updated = result.opcode == "dynamic-update-slice"  # operand 1 is the part that changes
            total += self._bytes(scope[result.operands[1]].arrays if updated else (array,))
        return total

    def _read_part(self, instruction: HloInstruction, inner: Computation, index: int) -> int | None:
        """Bytes read of an operand that is sliced or gathered from; None if all of it is read."""
        if instruction.opcode in ("dynamic-slice", "gather", "slice") and index == 0:
            return self._bytes(instruction.arrays)
        if instruction.opcode == "dynamic-update-slice" and index == 0:
            return 0
        for part in inner.values():
            if part.opcode == "parameter" and part.arguments == str(index):
                return self._read_part_inside(inner, part.name)
        return None

    def _read_part_inside(self, inner: Computation, name: str) -> int | None:
        """`_read_part` of a parameter of a fusion."""
        total = 0
        for user in inner.values():
            if name not in user.operands:
                continue
            first = user.operands[0] == name and name not in user.operands[1:]
            if first and user.opcode in ("dynamic-slice", "gather", "slice"):
                total += sum(array.nbytes for array in user.arrays)
            elif first and user.opcode == "bitcast":  # another shape of the same bytes
                part = self._read_part_inside(inner, user.name)
                if part is None:
                    return None
                total += part
            elif not (first and user.opcode == "dynamic-update-slice"):
                return None
        return total

    def _bytes(self, arrays: tuple[HloArray, ...]) -> int:
        return sum(array.nbytes for array in arrays if array.space in self.in_memory)


def product_flops(
    module: HloModule, instruction: HloInstruction, scope: Computation
) -> tuple[int, str]:
    """FLOPs of all products in a kernel, and the dtype of the largest product's operands."""
    inner = module.computations.get(instruction.called("calls") or "", {})
    products = [product_flops(module, part, inner) for part in inner.values()]
    products.append((_instruction_flops(instruction, scope), _dtype(instruction, scope)))
    return sum(flops for flops, _ in products), max(products)[1]


def _instruction_flops(instruction: HloInstruction, scope: Computation) -> int:
    size = instruction.arrays[0].size if instruction.arrays else 0
    if instruction.opcode == "dot":
        contracted = instruction.dims_of("lhs_contracting_dims")
    elif "$gemm" in instruction.attributes or "$lt$matmul" in instruction.attributes:
        listed = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', instruction.attributes)
        contracted = parse_ints(listed[1]) if listed else ()
    elif instruction.opcode == "convolution":
        return 2 * size * _contracted_by_convolution(instruction, scope)
    elif instruction.opcode == "custom-call" and instruction.name.startswith(_RAGGED):
        return _ragged_flops(instruction, scope)
    elif instruction.opcode == "custom-call":
        return _attention_flops(instruction, scope)
    else:
        return 0
    left = scope[instruction.operands[0]].arrays[0].dims
    return 2 * size * math.prod(left[axis] for axis in contracted)


def _contracted_by_convolution(instruction: HloInstruction, scope: Computation) -> int:
    """Multiplications for each output of a convolution, the form of products on TPUs.

    Batch axes are spatial axes there, dilated so that each output meets one position of the window.
    """
    left, right = (scope[name].arrays[0].dims for name in instruction.operands[:2])
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    if not labels:
        return 0
    count = right[labels[2].index("i")]
    window = re.search(r"window=\{([^}]*)\}", instruction.attributes)
    sizes = re.search(r"\bsize=([\dx]+)", window[1]) if window else None
    if window is None or sizes is None or "_dilate" in window[1]:
        return count
    for axis, size in enumerate(parse_ints(sizes[1].replace("x", ","))):
        count *= min(size, left[labels[1].index(str(axis))])
    return count


def _ragged_flops(instruction: HloInstruction, scope: Computation) -> int:
    """FLOPs of a product of rows with one of several matrices each on TPUs, or of the gradient of
    the matrices; the operands are the last two."""
    left = scope[instruction.operands[-2]].arrays[0]
    result = instruction.arrays[0]
    if len(result.dims) == 2:
        return 2 * result.size * left.dims[1]
    return 2 * left.dims[0] * math.prod(result.dims[1:])


def _attention_flops(instruction: HloInstruction, scope: Computation) -> int:
    """FLOPs of fused attention: two products forward, five backward; 0 for other calls.

    cuDNN computes all blocks. Splash skips the blocks that its mask marks with 0, and a head of
    fewer elements than the matrix unit is wide takes as long as one of that width.
    """
    if "$fmha" in instruction.attributes:
        is_backward = "Backward" in instruction.attributes
        query, key = (scope[name].arrays[0].dims for name in instruction.operands[:2])
        size = math.prod(query)
        length = key[1]
        visited = Fraction(1)
    elif instruction.name.startswith(_SPLASH):
        is_backward = instruction.name.startswith(_SPLASH + "d")  # dq, dkv
        operands = instruction.operands[_SPLASH_QUERY : _SPLASH_QUERY + 2]
        query, key = (scope[name].arrays[0].dims for name in operands)
        size = math.prod(query[:-1]) * max(query[-1], _MATRIX_UNIT)
        length = key[-2]
        visited = _visited_blocks(scope.get(instruction.operands[1]))
    else:
        return 0
    products = 5 if is_backward else 2
    return int(visited * products * 2 * size * length)


def _visited_blocks(mask: HloInstruction | None) -> Fraction:
    """Fraction of the blocks of a splash mask that are computed; 1 if the program does not say."""
    blocks = parse_ints(mask.arguments) if mask and mask.opcode == "constant" else ()
    return Fraction(sum(block > 0 for block in blocks), len(blocks)) if blocks else Fraction(1)


def _dtype(instruction: HloInstruction, scope: Computation) -> str:
    """Dtype of a product's operands.

    float32 that the hardware may round is "tensorfloat32".
    """
    first = 0
    if instruction.name.startswith(_SPLASH):
        first = _SPLASH_QUERY
    elif instruction.name.startswith(_RAGGED):
        first = -2
    dtype = "f32"
    for name in instruction.operands[first : first + 1]:  # an instruction may have no operands
        if name in scope and scope[name].arrays:
            dtype = scope[name].arrays[0].dtype
    if "algorithm=dot_bf16_bf16_f32" in instruction.attributes:
        return "bfloat16"  # its operands are rounded when they are read
    exact = re.search(
        r"operand_precision=\{highest|algorithm=dot_f32_f32_f32\b", instruction.attributes
    )
    return "tensorfloat32" if dtype == "f32" and not exact else _DTYPES.get(dtype, "float32")


def integer_ops(module: HloModule, inner: Computation) -> int:
    """32-bit operations that make random bits. A rotation (two shifts, one or) counts as one."""
    total = 0
    for instruction in inner.values():
        mixes = instruction.opcode in ("xor", "add", "shift-left")
        if mixes and instruction.arrays[0].dtype == "u32":
            total += instruction.arrays[0].size
        called = instruction.called("calls") or ""
        total += integer_ops(module, module.computations.get(called, {}))
    return total
