# SPDX-License-Identifier: Apache-2.0
"""Parser of HLO, the text form of XLA's compiled programs, as far as costs need it."""

import dataclasses
import math
import re
from collections.abc import Mapping

_ARRAY = re.compile(r"\b(pred|bf16|[fsuc]\d+(?:e\d\w*)?)\[([\d,]*)\](\{[^}]*\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_CONTINUED = re.compile(r'\n(?="|\}\})')  # Pallas kernels have attributes of several lines
_NAME = re.compile(r"%([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class HloArray:
    """One array in the shape of a result.

    Attributes:
      dtype: as HLO writes it: "bf16", "f32".
      space: number of its memory space; 0 is the device's main memory.
    """

    dtype: str
    dims: tuple[int, ...]
    space: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes without padding."""
        digits = re.match(r"\D*(\d+)", self.dtype)
        bits = int(digits[1]) if digits else 8  # "pred"
        return self.size * bits // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class HloInstruction:
    """An instruction, which is one line of a computation.

    Attributes:
      name: within the module.
      arrays: the result, several if it is a tuple.
      opcode: such as "dot" or "fusion".
      operands: instructions of the same computation.
      arguments: the text between the parentheses.
      attributes: the text after the parentheses.
      is_root: True if its result is that of the computation.
      computations: those of the module.
    """

    name: str
    arrays: tuple[HloArray, ...]
    opcode: str
    operands: tuple["HloInstruction", ...]
    arguments: str
    attributes: str
    is_root: bool
    computations: Mapping[str, "Computation"]

    @property
    def op_name(self) -> str:
        """Names of JAX's and Flax's scopes that the instruction comes from; "" if unknown."""
        scopes = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return scopes[1].partition(";")[0] if scopes else ""

    def called(self, *keys: str) -> "Computation":
        """Computation in an attribute such as `calls=` or `body=`, of a list such as
        `branch_computations=` the first; empty if there is none."""
        match = re.search(rf"\b(?:{'|'.join(keys)})=\{{?%?([\w.\-]+)", self.attributes)
        return self.computations.get(match[1], {}) if match else {}

    @property
    def inner(self) -> "Computation":
        """Instructions of a fusion; empty for others."""
        return self.called("calls")

    @property
    def nbytes(self) -> int:
        """Bytes of the results."""
        return sum(array.nbytes for array in self.arrays)


type Computation = dict[str, HloInstruction]
"""Instructions by name, in order of execution."""


def parse_module(text: str) -> Computation:
    """Parses the text of `jax.stages.Compiled.as_text`; returns the computation that runs first.

    Raises:
      ValueError: the text has no entry computation.
    """
    computations: dict[str, Computation] = {}
    entry: Computation = {}
    current: Computation = {}
    for line in _CONTINUED.sub(" ", text).splitlines():
        instruction_head = _INSTRUCTION.match(line)
        computation_head = _COMPUTATION.match(line)
        if computation_head:
            is_entry, name = computation_head.groups()
            current = {}
            computations[name] = current
            if is_entry:
                entry = current
        elif instruction_head:
            instruction = _instruction(instruction_head, line, current, computations)
            if instruction:
                current[instruction.name] = instruction
    if not entry:
        raise ValueError("the text is no HLO module: no computation is its ENTRY")
    return entry


def parse_shape(shape: str) -> tuple[HloArray, ...]:
    """Parses a shape such as "f32[2,3]{1,0}" or "(f32[2], s32[])"."""
    arrays = []
    for dtype, dims, layout in _ARRAY.findall(shape):
        space = re.search(r"S\((\d+)\)", layout)
        arrays.append(HloArray(dtype, parse_ints(dims), int(space[1]) if space else 0))
    return tuple(arrays)


def parse_ints(text: str) -> tuple[int, ...]:
    """Whole numbers in a text."""
    return tuple(map(int, re.findall(r"\d+", text)))


def _instruction(
    head: re.Match[str], line: str, scope: Computation, computations: Mapping[str, Computation]
) -> HloInstruction | None:
    """Parses `SHAPE OPCODE(ARGUMENTS)ATTRIBUTES` after a head; None for other lines."""
    rest = line[head.end() :]
    shape_end = _closing(rest) if rest.startswith("(") else rest.index(" ")
    opcode, _, after_opcode = rest[shape_end:].lstrip().partition("(")
    if not re.fullmatch(r"[\w\-]+", opcode):
        return None
    end = _closing("(" + after_opcode) - 1
    arguments = after_opcode[: end - 1]
    return HloInstruction(
        name=head[2],
        arrays=parse_shape(rest[:shape_end]),
        opcode=opcode,
        operands=tuple(scope[name] for name in _NAME.findall(arguments) if name in scope),
        arguments=arguments,
        attributes=after_opcode[end:],
        is_root=bool(head[1]),
        computations=computations,
    )


def _closing(text: str) -> int:
    """Index after the parenthesis that closes the first one."""
    depth = 0
    for parenthesis in re.finditer(r"[()]", text):
        depth += 1 if parenthesis[0] == "(" else -1
        if depth == 0:
            return parenthesis.end()
    return len(text)
