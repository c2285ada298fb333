"""What each kernel of a compiled program does: products, bytes, integer operations.

A kernel is a top-level instruction: what XLA fused is one, and reads and writes memory at its
edges alone. Loops count as often as they run.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from fractions import Fraction

from transformer_jax.tools.plan.hlo import Array, Computation, HloInstruction, Module, numbers

# FOLDED tools.plan.products: Arithmetic of a kernel: FLOPs of its products, and the integer
# operations of random bits.


_SPLASH, _SPLASH_QUERY = "splash_mha_", 2  # names of its calls; the place of the queries
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "s8": "int8", "u8": "int8", "f32": "float32"}


def products(module: Module, one: HloInstruction, scope: Computation) -> tuple[int, str]:
    """FLOPs of all products of a kernel, and the dtype of the largest one's operands."""
    inner = module.computations.get(one.called("calls") or "", {})
    found = [products(module, each, inner) for each in inner.values()]
    found.append((_product_flops(one, scope), _dtype(one, scope)))
    return sum(flops for flops, _ in found), max(found)[1]


def _product_flops(one: HloInstruction, scope: Computation) -> int:
    size = one.arrays[0].size if one.arrays else 0
    if one.opcode == "dot":
        contracted = one.dims_of("lhs_contracting_dims")
    elif "$gemm" in one.attributes or "$lt$matmul" in one.attributes:
        listed = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', one.attributes)
        contracted = numbers(listed[1]) if listed else ()
    elif one.opcode == "convolution":
        return 2 * size * _contracted_by_convolution(one, scope)
    elif one.opcode == "custom-call":
        return _attention_flops(one, scope)
    else:
        return 0
    left = scope[one.operands[0]].arrays[0].dims
    return 2 * size * math.prod(left[axis] for axis in contracted)


def _contracted_by_convolution(one: HloInstruction, scope: Computation) -> int:
    """Multiplications for each output of a convolution, the form that products have on TPUs.

    Batch axes are spatial ones there, dilated so that each output meets one place of the window.
    """
    left, right = (scope[name].arrays[0].dims for name in one.operands[:2])
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", one.attributes)
    if not labels:
        return 0
    count = right[labels[2].index("i")]
    window = re.search(r"window=\{([^}]*)\}", one.attributes)
    sizes = re.search(r"\bsize=([\dx]+)", window[1]) if window else None
    if window is None or sizes is None or "_dilate" in window[1]:
        return count
    for axis, size in enumerate(numbers(sizes[1].replace("x", ","))):
        count *= min(size, left[labels[1].index(str(axis))])
    return count


def _attention_flops(one: HloInstruction, scope: Computation) -> int:
    """Of fused attention: two products forward, five backward; 0 of other calls.

    cuDNN leaves nothing out. Splash leaves out the blocks that its mask marks with 0, and a head of
    fewer than 128 elements takes as long as one of 128, the width of a TPU's matrix unit.
    """
    if "$fmha" in one.attributes:
        is_backward, first, lanes, visited = "Backward" in one.attributes, 0, 1, Fraction(1)
    elif one.name.startswith(_SPLASH):
        is_backward, first, lanes = one.name.startswith(_SPLASH + "d"), _SPLASH_QUERY, 128
        visited = _visited(scope.get(one.operands[1]))
    else:
        return 0
    query, key = (scope[name].arrays[0].dims for name in one.operands[first : first + 2])
    length = key[1] if first == 0 else key[-2]
    products = 5 if is_backward else 2
    size = math.prod(query[:-1]) * max(query[-1], lanes)
    return int(visited * products * 2 * size * length)


def _visited(mask: HloInstruction | None) -> Fraction:
    """The part of the blocks of a splash mask that are computed, where the program says it."""
    blocks = numbers(mask.arguments) if mask and mask.opcode == "constant" else ()
    return Fraction(sum(block > 0 for block in blocks), len(blocks)) if blocks else Fraction(1)


def _dtype(one: HloInstruction, scope: Computation) -> str:
    """Of the operands of a product; float32 that the hardware may round is "tensorfloat32"."""
    first = _SPLASH_QUERY if one.name.startswith(_SPLASH) else 0
    known = [scope[name].arrays for name in one.operands[first : first + 1] if name in scope]
    dtype = known[0][0].dtype if known and known[0] else "f32"
    if "algorithm=dot_bf16_bf16_f32" in one.attributes:
        return "bfloat16"  # rounds its operands as it reads them
    exact = re.search(r"operand_precision=\{highest|algorithm=dot_f32_f32_f32\b", one.attributes)
    return "tensorfloat32" if dtype == "f32" and not exact else _DTYPES.get(dtype, "float32")


def integer_ops(module: Module, inner: Computation) -> int:
    """32-bit operations that random bits are made of; a rotation (two shifts, one or) is one."""
    total = 0
    for each in inner.values():
        if each.opcode in ("xor", "add", "shift-left") and each.arrays[0].dtype == "u32":
            total += each.arrays[0].size
        total += integer_ops(module, module.computations.get(each.called("calls") or "", {}))
    return total


EXCHANGES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
)
BETWEEN_SLICES = "between slices"
"""The kind of what TPUs send to other slices, by way of their hosts."""

_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("partition-id", "replica-id", "opt-barrier", "copy-done", "async-done", "async-update"),
    *("domain", "add-dependency", "custom-call-done", "send-done", "recv-done", "slice-done"),
    "fusion-done",
}
_FREE_CALLS = re.compile(r'custom_call_target="(AllocateBuffer|\w*Bitcast|Sharding)"')
_TRANSFERS = ("copy-start", "slice-start")
_OVERFLOWN = 10**12  # cycles that the compiler did not mean


@dataclasses.dataclass(frozen=True)
class KernelCost:
    """One kernel, and how often it runs in a step.

    Attributes:
      name: in the program.
      op_name: where the source asked for it.
      times: it runs in a step.
      flops: of its products, once.
      dtype: of their operands, as `Accelerator.peaks` names it.
      nbytes: from and to the device's memory, once.
      integer_ops: of 32 bits, once; a rotation is one.
      cycles: the compiler's own estimate; None where it gives none.
      is_opaque: whether it is another library's, of unknown cost.
      is_transfer: whether it only moves bytes, beside other kernels.
    """

    name: str
    op_name: str
    times: int
    flops: int
    dtype: str
    nbytes: int
    integer_ops: int
    cycles: int | None
    is_opaque: bool
    is_transfer: bool


@dataclasses.dataclass(frozen=True)
class Visit:
    """A top-level instruction, where it stands, and how often it runs."""

    instruction: HloInstruction
    computation: Computation
    times: int


def visits(module: Module, loops: int) -> Iterator[Visit]:
    """All instructions that run by themselves, in the entry and in what it calls; a loop of unknown
    length runs `loops` times."""
    return _visits(module, module.computations[module.entry], 1, loops)


def _visits(module: Module, computation: Computation, times: int, loops: int) -> Iterator[Visit]:
    for one in computation.values():
        if one.opcode == "while":
            inner, each = one.called("body"), _times(module, one) or loops
        elif one.opcode == "conditional":
            inner, each = one.called("true_computation", r"branch_computations=\{%?"), 1
        elif one.opcode in ("call", "async-start"):
            inner, each = one.called("to_apply", "calls", "called_computations=\\{%?"), 1
        else:
            inner, each = None, 1
        if inner in module.computations:
            yield from _visits(module, module.computations[inner], times * each, loops)
        else:
            yield Visit(one, computation, times)


def _times(module: Module, loop: HloInstruction) -> int | None:
    """How often a loop runs: by the compiler's note, or by its condition, that a counter is below a
    number, as of all loops of a known length in JAX."""
    if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes):
        return int(known[1])
    condition = module.computations.get(loop.called("condition") or "", {})
    root = next((one for one in condition.values() if one.is_root), None)
    if root is None or root.opcode != "compare" or "direction=LT" not in root.attributes:
        return None
    limit = condition[root.operands[1]]
    return int(limit.arguments) if limit.opcode == "constant" else None


def kernels(module: Module, in_memory: frozenset[int], loops: int = 1) -> list[KernelCost]:
    """All kernels but exchanges.

    Args:
      module: the compiled program.
      in_memory: the memory spaces that lie in the device's memory, as far as bandwidth goes.
      loops: how often a loop of unknown length runs.
    """
    found = []
    for visit in visits(module, loops):
        one = visit.instruction
        if one.opcode in _FREE or exchange_kind(module, one) or _FREE_CALLS.search(one.attributes):
            continue
        inner = module.computations.get(one.called("calls") or "", {})
        moved = _Moved(module, visit.computation, in_memory)
        flops, dtype = products(module, one, visit.computation)
        cycles = re.search(r'"estimated_cycles":"(\d+)"', one.attributes)
        known = cycles is not None and int(cycles[1]) < _OVERFLOWN
        kernel = KernelCost(
            name=one.name,
            op_name=one.op_name,
            times=visit.times,
            flops=flops,
            dtype=dtype,
            nbytes=moved.in_all(one, inner),
            integer_ops=integer_ops(module, inner),
            cycles=int(cycles[1]) if cycles and known else None,
            is_opaque=one.opcode == "custom-call" and not flops and not known,
            is_transfer=one.opcode in _TRANSFERS,
        )
        if max(array.size for array in one.arrays) > 1 or kernel.cycles or kernel.nbytes > 64:
            found.append(kernel)
    return found


def exchange_kind(module: Module, one: HloInstruction) -> str | None:
    """The kind of exchange between devices that an instruction starts; "done" where it ends one;
    None for all others."""
    for kind in EXCHANGES:
        if one.opcode.startswith(kind):
            return "done" if one.opcode.endswith("-done") else kind
    if one.opcode in ("send", "recv"):
        return BETWEEN_SLICES if one.opcode == "send" else "done"
    inner = module.computations.get(one.called("calls") or "", {})
    kinds = (exchange_kind(module, each) for each in inner.values())
    return next((kind for kind in kinds if kind), None) if one.opcode == "fusion" else None


@dataclasses.dataclass(frozen=True)
class _Moved:
    """Bytes between the device's memory and a kernel."""

    module: Module
    computation: Computation
    in_memory: frozenset[int]

    def in_all(self, one: HloInstruction, inner: Computation) -> int:
        """Bytes that are read and written; of a transfer, whose result names its operand too, once
        what arrives."""
        if one.opcode not in _TRANSFERS:
            return self.read(one, inner) + self.written(one, inner)
        given = [array for name in one.operands for array in self.computation[name].arrays]
        return sum(x.nbytes for x in one.arrays) - sum(x.nbytes for x in given)

    def read(self, one: HloInstruction, inner: Computation) -> int:
        """Bytes of the operands; of those that are sliced or gathered from, what is taken."""
        total = 0
        for place, name in enumerate(one.operands):
            if name not in self.computation or name in one.operands[:place]:
                continue
            whole = self._bytes(self.computation[name].arrays)
            taken = self._taken(one, inner, place)
            total += whole if taken is None else min(whole, taken)
        return total

    def written(self, one: HloInstruction, inner: Computation) -> int:
        """Bytes of the results; of arrays that are updated in place, what changes."""
        arrays = one.arrays
        if one.opcode == "fusion-start":  # its operands, its results, and a context
            arrays = arrays[len(one.operands) : -1]
        root = next((each for each in inner.values() if each.is_root), one)
        scope = inner or self.computation
        results = [scope[name] for name in root.operands] if root.opcode == "tuple" else [root]
        if not any(each.opcode == "dynamic-update-slice" for each in results):
            return self._bytes(arrays)
        total = 0
        for array, each in zip(arrays, results, strict=False):
            updated = each.opcode == "dynamic-update-slice"
            total += self._bytes(scope[each.operands[1]].arrays if updated else (array,))
        return total

    def _taken(self, one: HloInstruction, inner: Computation, place: int) -> int | None:
        if one.opcode in ("dynamic-slice", "gather", "slice") and place == 0:
            return self._bytes(one.arrays)
        if one.opcode == "dynamic-update-slice" and place == 0:
            return 0
        parameter = next(
            (
                each.name
                for each in inner.values()
                if each.opcode == "parameter" and each.arguments == str(place)
            ),
            None,
        )
        return None if parameter is None else self._taken_inside(inner, parameter)

    def _taken_inside(self, inner: Computation, name: str) -> int | None:
        total = 0
        for user in inner.values():
            if name not in user.operands:
                continue
            first = user.operands[0] == name and name not in user.operands[1:]
            if first and user.opcode in ("dynamic-slice", "gather", "slice"):
                total += sum(array.nbytes for array in user.arrays)
            elif first and user.opcode == "bitcast":
                further = self._taken_inside(inner, user.name)
                if further is None:
                    return None
                total += further
            elif not (first and user.opcode == "dynamic-update-slice"):
                return None
        return total

    def _bytes(self, arrays: tuple[Array, ...]) -> int:
        return sum(array.nbytes for array in arrays if array.space in self.in_memory)
