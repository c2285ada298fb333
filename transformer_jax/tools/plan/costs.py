"""What each kernel of a compiled program does: products, bytes, integer operations.

A kernel is a top-level instruction: what XLA fused is one, and reads and writes memory at its
edges alone. Loops count as often as they run.
"""

import dataclasses
import re
from collections.abc import Iterator

from transformer_jax.tools.plan.hlo import Array, Computation, Instruction, Module
from transformer_jax.tools.plan.products import integer_ops, products

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
class Kernel:
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

    instruction: Instruction
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


def _times(module: Module, loop: Instruction) -> int | None:
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


def kernels(module: Module, in_memory: frozenset[int], loops: int = 1) -> list[Kernel]:
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
        kernel = Kernel(
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


def exchange_kind(module: Module, one: Instruction) -> str | None:
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

    def in_all(self, one: Instruction, inner: Computation) -> int:
        """Bytes that are read and written; of a transfer, whose result names its operand too, once
        what arrives."""
        if one.opcode not in _TRANSFERS:
            return self.read(one, inner) + self.written(one, inner)
        given = [array for name in one.operands for array in self.computation[name].arrays]
        return sum(x.nbytes for x in one.arrays) - sum(x.nbytes for x in given)

    def read(self, one: Instruction, inner: Computation) -> int:
        """Bytes of the operands; of those that are sliced or gathered from, what is taken."""
        total = 0
        for place, name in enumerate(one.operands):
            if name not in self.computation or name in one.operands[:place]:
                continue
            whole = self._bytes(self.computation[name].arrays)
            taken = self._taken(one, inner, place)
            total += whole if taken is None else min(whole, taken)
        return total

    def written(self, one: Instruction, inner: Computation) -> int:
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

    def _taken(self, one: Instruction, inner: Computation, place: int) -> int | None:
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
