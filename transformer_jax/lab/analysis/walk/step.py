# SPDX-License-Identifier: Apache-2.0
"""Steps of a walk: what is computed, its place in the paper and in the code, and the numbers.

`KINDS` lists the kinds of steps with formula, section and code. A single step may replace these
where the config differs from the paper.

Formulas are in a linear notation that is readable as text and parses to MathML, a part of
UnicodeMath (Sargent 2016): a_b and a^b are indices, a/b is a fraction, √a a root. Parentheses
around a whole index, numerator, denominator or radicand only group. Quotation marks enclose words.
Example: "softmax((Q K^T)/√(d_k)) V".
"""

import dataclasses
import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.inference.model_inputs import ModelInputs, as_row
from transformer_jax.models.classifier import TextClassifier
from transformer_jax.models.encoder_only import EncoderOnly, PredictionHead
from transformer_jax.nn.attention import MultiHeadAttention, attention_logits
from transformer_jax.nn.cache import KVCache
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.embeddings import Embedding, InputEmbedding, Unprojected
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.masks import padding_mask
from transformer_jax.nn.norms import final_norm
from transformer_jax.nn.ops import head_outputs, head_products, soft_cap, softmax
from transformer_jax.nn.positions.base import PositionEncoding
from transformer_jax.nn.sublayers import AttentionLayer
from transformer_jax.nn.transformer import Residual
from transformer_jax.summary import Summarized
from transformer_jax.tokenization import Labels, Tokenizer


class Where(NamedTuple):
    """A function or method of the project: its file, and its name there."""

    file: str
    function: str

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Where":
        """Location of a function, or of a method in the class that defines it."""
        defined = inspect.unwrap(function)
        return cls(f"{defined.__module__.replace('.', '/')}.py", defined.__qualname__)


class StepKind(NamedTuple):
    """Title, formula, section and code that all steps of a kind share."""

    title: str
    formula: str
    section: str
    where: Where


def _kind(title: str, formula: str, section: str, function: Callable[..., Any]) -> StepKind:
    return StepKind(title, formula, section, Where.of(function))


KINDS: Mapping[str, StepKind] = {
    "tokens": _kind("Tokens", '"text" → (w_1, …, w_n)', "section 5.1", Tokenizer.encode),
    "ids": _kind("Token ids", "t_i ∈ {0, …, V−1}", "section 5.1", as_row),
    "embedding": _kind("Embedding", "x_i = E_(t_i)", "section 3.4", Embedding.embed),
    "embedding_scale": _kind(
        "Embedding, scaled", "x_i = √(d_model) E_(t_i)", "section 3.4", Embedding.embed
    ),
    "positions": _kind("Positions", "PE_p", "section 3.5", PositionEncoding.embed),
    "embedded": _kind(
        "Embedding plus positions", "x_i + PE_i", "section 3.5", PositionEncoding.embed
    ),
    "token_types": _kind(
        "Token types", "x_i + S_(s_i)", "Devlin et al. 2019, section 3", InputEmbedding.__call__
    ),
    "embedding_norm": _kind(
        "Norm of the embeddings",
        "norm(x)",
        "Devlin et al. 2019 (published code)",
        InputEmbedding.__call__,
    ),
    "norm_before": _kind("Norm", "norm(x)", "section 3.1", Residual.before),
    "queries": _kind("Queries", "Q = x W^Q", "section 3.2.2", MultiHeadAttention.projections),
    "keys": _kind("Keys", "K = x W^K", "section 3.2.2", MultiHeadAttention.projections),
    "values": _kind("Values", "V = x W^V", "section 3.2.2", MultiHeadAttention.projections),
    "products": _kind("Products of queries and keys", "Q K^T", "section 3.2.1", head_products),
    "scale": _kind("Scale", "(Q K^T)/√(d_k)", "section 3.2.1", attention_logits),
    "bias": _kind(
        "Position bias", "(Q K^T)/√(d_k) + B", "section 3.5", PositionEncoding.logit_bias
    ),
    "cap": _kind("Cap", "c tanh(z/c)", "Gemma 2 (2024), section 2", soft_cap),
    "mask": _kind("Mask", 'z_(i j) = −∞ "where" i "does not see" j', "section 3.2.3", padding_mask),
    "softmax": _kind(
        "Softmax", "A_(i j) = e^(z_(i j))/(∑_s e^(z_(i s)))", "section 3.2.1", softmax
    ),
    "heads": _kind(
        "Heads", "head = softmax((Q K^T)/√(d_k)) V", "section 3.2.1, equation 1", head_outputs
    ),
    "output": _kind(
        "Output matrix", "Concat(head_1, …, head_h) W^O", "section 3.2.2", MultiHeadAttention.attend
    ),
    "hidden": _kind(
        "Feed-forward, inner layer",
        "h = max(0, x W_1 + b_1)",
        "section 3.3, equation 2",
        FeedForward.__call__,
    ),
    "feed_forward": _kind(
        "Feed-forward, outer layer",
        "FFN(x) = h W_2 + b_2",
        "section 3.3, equation 2",
        FeedForward.__call__,
    ),
    "sublayer": _kind("Sublayer", "y = Sublayer(x)", "section 3.1", AttentionLayer.self_attend),
    "norm_after": _kind("Norm", "norm(x)", "section 3.1", Residual.after),
    "residual": _kind("Residual", "x + Sublayer(x)", "section 3.1", Residual.after),
    "final_norm": _kind("Final norm", "norm(x)", "section 3.1", final_norm),
    "prediction_head": _kind(
        "Prediction head",
        "norm(activation(x W + b))",
        "Devlin et al. 2019 (published code)",
        PredictionHead.__call__,
    ),
    "logits": _kind("Logits", "z = x E^T", "section 3.4", Unprojected.logits),
    "next": _kind(
        "The most likely next tokens",
        "P(t) = e^(z_t)/(∑_s e^(z_s))",
        "section 3.4",
        Unprojected.logits,
    ),
    "filled": _kind(
        "Prediction for the masked token",
        "P(t) = e^(z_t)/(∑_s e^(z_s))",
        "Devlin et al. 2019, section 3.1",
        EncoderOnly.unprojected,
    ),
    "classes": _kind(
        "Classes",
        "P(c) = e^(z_c)/(∑_k e^(z_k))",
        "Devlin et al. 2019, section 3.2",
        TextClassifier.__call__,
    ),
    "cache": _kind(
        "Cache, one token longer",
        "K ← (K; x_t W^K), V ← (V; x_t W^V)",
        "section 3.1 (auto-regressive)",
        KVCache.append,
    ),
    "past": _kind(
        "Attention to the cache",
        "softmax((q_t K^T)/√(d_k))",
        "section 3.2.3",
        MultiHeadAttention.self_attend,
    ),
    "source": _kind(
        "Attention to the source",
        "softmax((q_t K^T)/√(d_k))",
        "section 3.2.3",
        MultiHeadAttention.cross_attend,
    ),
}


def has_steps(sublayer: type) -> bool:
    """Returns True if a walk explains how a sublayer of this class computes; of others it shows
    only the output."""
    return sublayer in (MultiHeadAttention, FeedForward)


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
      where: the code that computes it.
      explanation: what happens, with numbers of this example.
      values: the result, with the axes `axes`; -inf where a mask removed a logit.
      axes: axes of `values`.
      example: indices along the first axes of the entry that the explanation uses.
      places: paths of the activations (`nn.hooks`) that the step shows or is computed from.
    """

    kind: str
    group: tuple[str, ...]
    title: str
    formula: str
    section: str
    where: Where
    explanation: str
    values: np.ndarray
    axes: tuple[Axis, ...]
    example: tuple[int, ...] = ()
    places: tuple[str, ...] = ()

    def summary(self) -> Mapping[str, Any]:
        """The formula, the explanation and the shape of the result."""
        return {
            "title": self.title,
            "group": ", ".join(self.group),
            "formula": self.formula,
            "section": self.section,
            "code": f"{self.where.file}: {self.where.function}",
            "values": self.shape,
            "explanation": _ISOLATES.sub("", self.explanation),
        }

    @property
    def shape(self) -> str:
        """Shape in words: "4 heads × 9 queries × 9 keys"."""
        sizes = zip(self.values.shape, self.axes, strict=True)
        return " × ".join(f"{size:,} {_plural(axis.name, size)}" for size, axis in sizes)


def _plural(name: str, size: int) -> str:
    return name if size == 1 else _PLURALS.get(name, f"{name}s")


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
    tokens = _TOKEN.findall(formula)
    tree = _row(tokens)
    if tokens:
        raise ValueError(f"formula {formula!r}: unmatched {tokens[0]}")
    return tree


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
      model: the Flax module.
      params: its parameters.
      config: config of its body.
      reading: the example.
      values: activations by path (`analysis.activations`).
      outputs: vocabulary or labels of the model's predictions.
    """

    model: Any
    params: Any
    config: TransformerConfig
    reading: ModelInputs
    values: Mapping[str, np.ndarray]
    outputs: Tokenizer | Labels

    def name_of(self, output: int) -> str:
        """Piece of a predicted token, or name of a predicted label."""
        if isinstance(self.outputs, Labels):
            return self.outputs.names[output]
        return self.outputs.pieces([output])[0]

    @property
    def mask(self) -> int | None:
        """Id of the mask token, if there is one."""
        return None if isinstance(self.outputs, Labels) else self.outputs.specials.mask

    def tokens(self, stack: str, name: str = "token") -> Axis:
        """Axis of a stack's input tokens."""
        return Axis(name, tuple(self.reading.pieces[stack]))

    def example(self, stack: str) -> int:
        """Index of the token that explanations use: the middle one."""
        return len(self.reading.tokens[stack]) // 2

    def token(self, stack: str, index: int) -> str:
        """Token and its index, for explanations."""
        return f"{quoted(self.reading.pieces[stack][index])} ({index})"


def quoted(text: str) -> str:
    """Text in quotation marks, isolated so that right-to-left text does not reorder its context."""
    return f"“\N{FIRST STRONG ISOLATE}{text}\N{POP DIRECTIONAL ISOLATE}”"


def number(x: float) -> str:
    """A number with three significant digits."""
    return f"{x:.3g}".replace("-", "−")


def some(values: np.ndarray) -> str:
    """First entries of a vector, for explanations."""
    first = ", ".join(map(number, values[:3].tolist()))
    return f"({first}, …)" if len(values) > 3 else f"({first})"


def step(
    kind: str,
    group: tuple[str, ...],
    explanation: str,
    values: np.ndarray,
    axes: Sequence[Axis | str],
    places: Sequence[str] = (),
    example: Sequence[int] = (),
    **instead: Any,
) -> WalkStep:
    """A step of a kind; `instead` replaces title, formula, section or code of `KINDS`."""
    replaced = {name: value for name, value in instead.items() if value is not None}
    named = tuple(axis if isinstance(axis, Axis) else Axis(axis) for axis in axes)
    return WalkStep(
        kind=kind,
        group=group,
        explanation=explanation,
        values=values,
        axes=named,
        places=tuple(places),
        example=tuple(map(int, example)),
        **KINDS[kind]._asdict() | replaced,
    )
