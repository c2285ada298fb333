# SPDX-License-Identifier: Apache-2.0
"""Steps of a walk: what is computed, its place in the paper and in the code, and the numbers."""

import dataclasses
import inspect
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.inference.model_inputs import ModelInputs
from transformer_jax.lab.analysis.walk.kinds import KINDS
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.summary import Summarized
from transformer_jax.tokenization import Labels, Tokenizer

_ISOLATES = re.compile("[\N{FIRST STRONG ISOLATE}\N{POP DIRECTIONAL ISOLATE}]")
_PLURALS = {"query": "queries", "vocabulary entry": "vocabulary entries"}


@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis of an array of a step.

    Attributes:
      name: singular noun for its entries, such as "token" or "feature".
      labels: label of each entry; empty: entries are numbered.
    """

    name: str
    labels: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, repr=False)
class WalkStep(Summarized):
    """One computation of a model for one example.

    Attributes:
      kind: an entry of `KINDS`.
      group: location in the model, outermost first: ("encoder", "layer 0", "self-attention").
      title: a few words.
      formula: in linear notation (`parse_formula`).
      section: section of "Attention Is All You Need", or a later paper.
      file, function: the code that computes it.
      explanation: what happens, with numbers of this example.
      values: the result, with the axes `axes`; -inf where a mask removed a logit.
      axes: axes of `values`.
      example: indices along the first axes of the entry that the explanation uses.
    """

    kind: str
    group: tuple[str, ...]
    title: str
    formula: str
    section: str
    file: str
    function: str
    explanation: str
    values: np.ndarray
    axes: tuple[Axis, ...]
    example: tuple[int, ...] = ()

    def summary(self) -> Mapping[str, Any]:
        """The formula, the explanation and the shape of the result."""
        return {
            "title": self.title,
            "group": ", ".join(self.group),
            "formula": self.formula,
            "section": self.section,
            "code": f"{self.file}: {self.function}",
            "values": self.shape,
            "explanation": _ISOLATES.sub("", self.explanation),
        }

    @property
    def shape(self) -> str:
        """Shape in words: "4 heads × 9 queries × 9 keys"."""
        parts = []
        for size, axis in zip(self.values.shape, self.axes, strict=True):
            plural = _PLURALS.get(axis.name, f"{axis.name}s")
            parts.append(f"{size:,} {axis.name if size == 1 else plural}")
        return " × ".join(parts)


@dataclasses.dataclass(frozen=True, repr=False)
class Walk(Summarized):
    """All steps of one example, in the order of computation.

    Attributes:
      texts: input and output text by name: "source" and "target", or "text".
      steps: the steps, with all numbers.
    """

    texts: Mapping[str, str]
    steps: Sequence[WalkStep]

    def summary(self) -> Mapping[str, Any]:
        """The texts, and the number of steps in each part of the model."""
        parts = Counter(step.group[0] for step in self.steps)
        return {**self.texts, "steps": len(self.steps), **parts}

    def of(self, kind: str, *group: str) -> list[WalkStep]:
        """Steps of a kind whose group starts with `group`."""
        return [
            step for step in self.steps if step.kind == kind and step.group[: len(group)] == group
        ]


type Tree = list[str | Tree]
"""Name of a MathML element, then its children: trees, or its text."""

_TOKEN = re.compile(r'"[^"]*"|[0-9]+(?:\.[0-9]+)?|[^\W\d_]+|\S')
_SCRIPTS = {"_": "msub", "^": "msup"}


def parse_formula(formula: str) -> Tree:
    """Parses a formula to a MathML tree, an <mrow>."""
    return _row(_TOKEN.findall(formula))


def _row(tokens: list[str]) -> Tree:
    """Parses up to the end or a closing parenthesis; removes the parsed tokens from the list."""
    row: Tree = ["mrow"]
    while tokens and tokens[0] != ")":
        row.append(_fraction(tokens))
    return row


def _fraction(tokens: list[str]) -> Tree:
    left = _scripted(tokens)
    while tokens and tokens[0] == "/":
        tokens.pop(0)
        left = ["mfrac", _bare(left), _bare(_scripted(tokens))]
    return left


def _scripted(tokens: list[str]) -> Tree:
    base = _atom(tokens)
    scripts = {}
    while tokens and tokens[0] in _SCRIPTS:
        kind = _SCRIPTS[tokens.pop(0)]
        scripts[kind] = _bare(_atom(tokens))
    if len(scripts) == 2:  # one above the other
        return ["msubsup", base, scripts["msub"], scripts["msup"]]
    for kind, script in scripts.items():
        base = [kind, base, script]
    return base


def _atom(tokens: list[str]) -> Tree:
    token = tokens.pop(0)
    if token == "(":
        inner = _row(tokens)
        tokens.pop(0)  # the closing parenthesis
        return ["mrow", ["mo", "("], inner, ["mo", ")"]]
    if token == "√":
        return ["msqrt", _bare(_scripted(tokens))]
    if token.startswith('"'):
        return ["mtext", f"\N{NO-BREAK SPACE}{token[1:-1]}\N{NO-BREAK SPACE}"]
    if token[0].isdigit():
        return ["mn", token]
    return ["mi" if token.isalpha() else "mo", token]


def _bare(tree: Tree) -> Tree:
    """Removes parentheses around the whole tree."""
    is_group = tree[0] == "mrow" and len(tree) == 4 and tree[1] == ["mo", "("]
    return tree[2] if is_group else tree  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True)
class Trace:
    """One example and all activations that a model computed for it.

    Attributes:
      config: of the model's body.
      values: activations by path (`analysis.activations`).
      outputs: vocabulary or labels of the model's predictions.
    """

    model: Any
    params: Any
    config: TransformerConfig
    reading: ModelInputs
    values: Mapping[str, np.ndarray]
    outputs: Tokenizer | Labels

    def token(self, stack: str, index: int) -> str:
        """Token and its index, for explanations."""
        return f"{quoted(self.reading.pieces[stack][index])} ({index})"

    def part(self, stack: str, *group: str) -> "Part":
        """Part of the model, which uses the middle token of a stack in its explanations."""
        return Part(self, stack, group, len(self.reading.tokens[stack]) // 2)


@dataclasses.dataclass(frozen=True)
class Part:
    """Part of a model, such as a sublayer, whose steps have one group.

    Attributes:
      trace: the example.
      stack: stack whose tokens it computes with.
      group: as in `WalkStep`.
      index: index of the token that explanations use.
    """

    trace: Trace
    stack: str
    group: tuple[str, ...]
    index: int

    def inside(self, name: str, index: int) -> "Part":
        """A part of this part, which uses another token."""
        return dataclasses.replace(self, group=(*self.group, name), index=index)

    @property
    def token(self) -> str:
        """The token that explanations use, and its index."""
        return self.trace.token(self.stack, self.index)

    def tokens(self, name: str = "token") -> Axis:
        """Axis of the stack's input tokens."""
        return Axis(name, tuple(self.trace.reading.pieces[self.stack]))

    def vectors(
        self,
        kind: str,
        values: np.ndarray,
        axis: Axis | str = "feature",
        entry: Sequence[int] = (),
        **words: Any,
    ) -> WalkStep:
        """A step whose result is a vector of each token, [T, N], or of each in each head,
        [H, T, N].

        Args:
          axis: the last axis.
          entry: index of the entry of the vector that the explanation uses, if it is one.
          words: as of `step`.
        """
        axes = (self.tokens(), axis)
        example = (self.index, *entry)
        if values.ndim == 3:
            return self.step(kind, values, ("head", *axes), (0, *example), **words)
        return self.step(kind, values, axes, example, **words)

    def step(
        self,
        kind: str,
        values: np.ndarray,
        axes: Sequence[Axis | str],
        example: Sequence[int] = (),
        **words: Any,
    ) -> WalkStep:
        """A step of a kind.

        Args:
          words: what the explanation has in braces, besides "token", "index", "width" (the size of
            the last axis) and "result" (the values at `example`). "title", "formula", "section",
            "code" and "explanation" replace those of `KINDS`, unless they are None.
        """
        texts = {
            name: words.pop(name, None) or text for name, text in KINDS[kind]._asdict().items()
        }
        words |= {"token": self.token, "index": self.index}
        words |= {"width": values.shape[-1], "result": values[tuple(example)]}
        texts["explanation"] = _Explanation().format(texts["explanation"], **words)
        code = inspect.unwrap(texts.pop("code"))  # a method is that of the class that defines it
        return WalkStep(
            kind=kind,
            group=self.group,
            file=f"{code.__module__.replace('.', '/')}.py",
            function=code.__qualname__,
            values=values,
            axes=tuple(axis if isinstance(axis, Axis) else Axis(axis) for axis in axes),
            example=tuple(map(int, example)),
            **texts,
        )


def quoted(text: str) -> str:
    """Text in quotation marks, isolated so that right-to-left text does not reorder its context."""
    return f"“\N{FIRST STRONG ISOLATE}{text}\N{POP DIRECTIONAL ISOLATE}”"


def number(x: float) -> str:
    """A number with three significant digits."""
    return f"{x:.3g}".replace("-", "−")


class _Explanation(string.Formatter):
    """Writes floats with three digits, unless the text says otherwise, and of vectors the first
    entries."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, np.ndarray):
            first = ", ".join(map(number, value[:3].tolist()))
            return f"({first}, …)" if len(value) > 3 else f"({first})"
        if isinstance(value, float | np.floating) and not format_spec:
            return number(float(value))
        return format(value, format_spec)
