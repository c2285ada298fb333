# SPDX-License-Identifier: Apache-2.0
"""Fingerprint of a lowered program: its dataflow, without names, order of statements and places.

Programs with the same fingerprint compute the same numbers with the same compiler. A call counts as
its body, operations without a reader do not count, and the operands of commutative operations have
no order (a + b and b + a have the same bits; a + (b + c) and (a + b) + c do not).
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax

_COMMUTATIVE = {
    f"stablehlo.{name}" for name in ("add", "multiply", "maximum", "minimum", "and", "or", "xor")
}
_EFFECTS = ("has_side_effect = true", "stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send")
_CALLBACK = "backend_config"
"""Attribute of a call into Python: the number of the callback in this process."""
_DIGITS = 32  # of a SHA-256


def program_fingerprint(lowered: jax.stages.Lowered) -> str:
    """The fingerprint of a lowered program; nothing is compiled.

    Shardings, donated buffers and the module's name do not count. The numbers of the arguments do:
    they are those of the flattened trees.
    """
    return module_fingerprint(lowered.compiler_ir("stablehlo"))


def module_fingerprint(module: Any) -> str:
    """The fingerprint of a module of StableHLO; see `program_fingerprint`."""
    functions = {
        view.attributes["sym_name"].value: view.regions[0].blocks[0]
        for view in module.body.operations
        if view.operation.name == "func.func"
    }
    arguments = [
        f"argument {number} {argument.type}"
        for number, argument in enumerate(functions["main"].arguments)
    ]
    return f"SHA-256 {_digest(*_Dataflow(functions).call('main', tuple(arguments), 0))}"


class _Dataflow:
    """Digests of values: what each is computed from, and how."""

    def __init__(self, functions: Mapping[str, Any]):
        self._functions = functions

    @functools.cache  # noqa: B019 lives as long as one fingerprint
    def call(self, name: str, arguments: tuple[str, ...], depth: int) -> list[str]:
        """Digests of the results of a function, and of its effects."""
        return self._run(self._functions[name], arguments, {}, depth)

    def _run(
        self, block: Any, arguments: Sequence[str], values: Mapping[Any, str], depth: int
    ) -> list[str]:
        """Digests of a block's results, and of its effects in their order."""
        values = {**values, **dict(zip(block.arguments, arguments, strict=True))}
        effects: list[str] = []
        for view in block.operations:
            operation = view.operation
            operands = [values[operand] for operand in operation.operands]
            if operation.name.endswith(".return"):  # of func, stablehlo, or sdy for a device's part
                return [*operands, *effects]
            digests = self._results(operation, operands, values, depth)
            results = list(operation.results)
            values |= dict(zip(results, digests, strict=False))
            effects += digests[len(results) :]
        raise AssertionError("a block without a return")

    def _results(
        self, operation: Any, operands: list[str], values: Mapping[Any, str], depth: int
    ) -> list[str]:
        """Digests of an operation's results, and of its effects."""
        if operation.name == "func.call":
            callee = operation.attributes["callee"].value
            return self.call(callee, tuple(operands), depth)
        if operation.name == "stablehlo.optimization_barrier":
            return [_digest(operation.name, operand) for operand in operands]
        if operation.name == "stablehlo.while":
            return self._loop(operation, operands, values, depth)
        if operation.name in _COMMUTATIVE:
            operands = sorted(operands)
        bodies = []
        for region in operation.regions:
            block = region.blocks[0]
            arguments = [f"argument {depth} {i}" for i in range(len(block.arguments))]
            bodies.append(_digest(*self._run(block, arguments, values, depth + 1)))
        text = _text(operation)
        whole = _digest(text, *operands, "regions", *bodies)
        results = [_digest(whole, str(number)) for number in range(len(operation.results))]
        has_effect = any(word in text for word in _EFFECTS)
        return [*results, whole] if has_effect else results

    def _loop(
        self, operation: Any, initial: list[str], values: Mapping[Any, str], depth: int
    ) -> list[str]:
        """Digests of the results of a loop, whose carried values have no order.

        A carried value is known by its color: its first value, and how it is updated from colors.
        Colors are refined until that tells no more values apart (Moore's minimization of automata);
        values of one color are equal in each iteration.
        """
        condition, body = (region.blocks[0] for region in operation.regions)
        count = len(initial)
        colors = initial
        while True:
            arguments = [_digest("carried", str(depth), color) for color in colors]
            outputs = self._run(body, arguments, values, depth + 1)
            refined = [_digest(*pair) for pair in zip(colors, outputs[:count], strict=True)]
            if len(set(refined)) == len(set(colors)):
                break
            colors = refined
        stops = self._run(condition, arguments, values, depth + 1)
        effects = outputs[count:]
        whole = _digest(operation.name, *sorted({*refined}), "stops", *stops, "effects", *effects)
        results = [_digest(whole, color) for color in refined]
        return [*results, whole] if effects else results


def _text(operation: Any) -> str:
    """Name, attributes and types of an operation."""
    attributes = {name: str(operation.attributes[name]) for name in operation.attributes}
    if "python" in attributes.get("call_target_name", ""):
        attributes = {k: text for k, text in attributes.items() if not k.endswith(_CALLBACK)}
    parts = [f"{name} = {text}" for name, text in sorted(attributes.items())]
    return "; ".join([operation.name, *parts, *(str(result.type) for result in operation.results)])


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_DIGITS]
