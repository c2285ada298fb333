# SPDX-License-Identifier: Apache-2.0
"""Fingerprint of a lowered program: its dataflow, without names, order of statements and places.

Programs with the same fingerprint compute the same numbers with the same compiler. A call counts as
its body, operations without a reader do not count, and the operands of commutative operations have
no order (a + b and b + a have the same bits; a + (b + c) and (a + b) + c do not).
"""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax

_COMMUTATIVE = {
    f"stablehlo.{name}" for name in ("add", "multiply", "maximum", "minimum", "and", "or", "xor")
}
_DIGITS = 32  # of a SHA-256
_RETURNS = ("func.return", "stablehlo.return")
_EFFECTS = ("has_side_effect = true", "stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send")
_PLACES = ("backend_config", "mhlo.backend_config")
"""Attributes of a call into Python: the number of the callback in this process."""


@dataclasses.dataclass(frozen=True)
class _Statement:
    """An operation; values are numbered within their function.

    Attributes:
      text: the operation's name, attributes and types.
      callee: name of the function that it calls; empty for other operations.
    """

    name: str
    text: str
    callee: str
    operands: Sequence[int]
    results: Sequence[int]
    regions: Sequence["_Block"]


@dataclasses.dataclass(frozen=True)
class _Block:
    arguments: Sequence[int]
    statements: Sequence[_Statement]


def program_fingerprint(lowered: jax.stages.Lowered) -> str:
    """The fingerprint of a lowered program; nothing is compiled.

    Shardings, donated buffers and the module's name do not count. The numbers of the arguments do:
    they are those of the flattened trees.
    """
    module: Any = lowered.compiler_ir("stablehlo")
    return module_fingerprint(module)


def module_fingerprint(module: Any) -> str:
    """The fingerprint of a module of StableHLO; see `program_fingerprint`."""
    functions = {}
    types = []
    for view in module.body.operations:
        if view.operation.name != "func.func":
            continue
        name = view.attributes["sym_name"].value
        block = view.regions[0].blocks[0]
        functions[name] = _read_block(block, {})
        if name == "main":
            types = [str(argument.type) for argument in block.arguments]
    arguments = [f"argument {i} {kind}" for i, kind in enumerate(types)]
    outputs = _Dataflow(functions).call("main", tuple(arguments), 0)
    return f"SHA-256 {_digest(*outputs)}"


def _read_block(block: Any, numbers: dict[Any, int]) -> _Block:
    for argument in block.arguments:
        numbers[argument] = len(numbers)
    arguments = [numbers[argument] for argument in block.arguments]
    statements = [_read_statement(view.operation, numbers) for view in block.operations]
    return _Block(arguments, statements)


def _read_statement(operation: Any, numbers: dict[Any, int]) -> _Statement:
    operands = [numbers[operand] for operand in operation.operands]
    regions = [_read_block(region.blocks[0], numbers) for region in operation.regions]
    results = operation.results
    for result in results:
        numbers[result] = len(numbers)
    attributes = {name: str(operation.attributes[name]) for name in operation.attributes}
    if "python" in attributes.get("call_target_name", ""):
        attributes = {name: text for name, text in attributes.items() if name not in _PLACES}
    parts = [f"{name} = {text}" for name, text in sorted(attributes.items())]
    return _Statement(
        name=operation.name,
        text="; ".join([operation.name, *parts, *(str(result.type) for result in results)]),
        callee=attributes["callee"].removeprefix("@") if operation.name == "func.call" else "",
        operands=operands,
        results=[numbers[result] for result in results],
        regions=regions,
    )


class _Dataflow:
    """Digests of values: what each is computed from, and how."""

    def __init__(self, functions: Mapping[str, _Block]):
        self._functions = functions

    @functools.cache  # noqa: B019 lives as long as one fingerprint
    def call(self, name: str, arguments: tuple[str, ...], depth: int) -> list[str]:
        """Digests of the results of a function, and of its effects."""
        return self._run(self._functions[name], arguments, {}, depth)

    def _run(
        self, block: _Block, arguments: Sequence[str], values: Mapping[int, str], depth: int
    ) -> list[str]:
        """Digests of a block's results, and of its effects in their order."""
        values = {**values, **dict(zip(block.arguments, arguments, strict=True))}
        effects: list[str] = []
        outputs: list[str] = []
        for statement in block.statements:
            operands = [values[number] for number in statement.operands]
            if statement.name in _RETURNS:
                outputs = operands
                continue
            results = self._results(statement, operands, values, depth)
            values |= dict(zip(statement.results, results, strict=False))
            effects += results[len(statement.results) :]
        return [*outputs, *effects]

    def _results(
        self, statement: _Statement, operands: list[str], values: Mapping[int, str], depth: int
    ) -> list[str]:
        """Digests of a statement's results, and of its effects."""
        if statement.callee:
            return self.call(statement.callee, tuple(operands), depth)
        if statement.name == "stablehlo.optimization_barrier":
            return [_digest(statement.name, operand) for operand in operands]
        if statement.name == "stablehlo.while":
            return self._loop(statement, operands, values, depth)
        if statement.name in _COMMUTATIVE:
            operands = sorted(operands)
        bodies = []
        for region in statement.regions:
            arguments = [f"argument {depth} {i}" for i in range(len(region.arguments))]
            bodies.append(_digest(*self._run(region, arguments, values, depth + 1)))
        whole = _digest(statement.text, *operands, "regions", *bodies)
        results = [_digest(whole, str(i)) for i in range(len(statement.results))]
        has_effect = any(word in statement.text for word in _EFFECTS)
        return [*results, whole] if has_effect else results

    def _loop(
        self, statement: _Statement, initial: list[str], values: Mapping[int, str], depth: int
    ) -> list[str]:
        """Digests of the results of a loop, whose carried values have no order.

        A carried value is known by its color: its first value, and how it is updated from colors.
        Colors are refined until that tells no more values apart (Moore's minimization of automata);
        values of one color are equal in each iteration.
        """
        condition, body = statement.regions
        colors = initial
        while True:
            arguments = [_digest("carried", str(depth), color) for color in colors]
            outputs = self._run(body, arguments, values, depth + 1)
            updates = outputs[: len(colors)]
            refined = [_digest(*pair) for pair in zip(colors, updates, strict=True)]
            if len(set(refined)) == len(set(colors)):
                break
            colors = refined
        stops = self._run(condition, arguments, values, depth + 1)
        effects = outputs[len(colors) :]
        whole = _digest(statement.name, *sorted(set(refined)), "stops", *stops, "effects", *effects)
        results = [_digest(whole, color) for color in refined]
        return [*results, whole] if effects or len(stops) > 1 else results


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_DIGITS]
