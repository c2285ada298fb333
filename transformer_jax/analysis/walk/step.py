"""Steps of a walk: what is computed, where the paper and the code have it, and the numbers."""

import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.inference.model_inputs import ModelInputs
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.tokenization import Labels, Tokenizer

# FOLDED analysis.walk.catalogue: The kinds of steps: formula, section of the paper and code of
# each. A step may say more exactly what a config chose in the place of the paper's formula.


class Where(NamedTuple):
    """A function or method of the project: its file, and its name there."""

    file: str
    function: str

    @classmethod
    def of(cls, owner: Any, name: str) -> "Where":
        """A method, in the class that defines it."""
        method = inspect.unwrap(getattr(owner, name))
        return cls(f"{method.__module__.replace('.', '/')}.py", method.__qualname__)


class StepKind(NamedTuple):
    """What steps of a kind share."""

    title: str
    formula: str
    section: str
    where: Where


def _kind(title: str, formula: str, section: str, file: str, function: str) -> StepKind:
    return StepKind(title, formula, section, Where(f"transformer_jax/{file}.py", function))


_ATTENTION, _NORM = "nn/attention", "section 3.1"

KINDS: Mapping[str, StepKind] = {
    "tokens": _kind(
        "Tokens",
        '"text" → (w_1, …, w_n)',
        "section 5.1",
        "tokenization/tokenizer",
        "Tokenizer.encode",
    ),
    "ids": _kind(
        "Token ids", "t_i ∈ {0, …, V−1}", "section 5.1", "inference/model_inputs", "as_row"
    ),
    "embedding": _kind(
        "Embedding", "x_i = E_(t_i)", "section 3.4", "nn/embeddings", "Embedding.embed"
    ),
    "embedding_scale": _kind(
        "Embedding, scaled",
        "x_i = √(d_model) E_(t_i)",
        "section 3.4",
        "nn/embeddings",
        "Embedding.embed",
    ),
    "positions": _kind(
        "Positions",
        "PE_p",
        "section 3.5",
        "nn/positions/base",
        "PositionEncoding.embed",
    ),
    "embedded": _kind(
        "Embedding plus positions",
        "x_i + PE_i",
        "section 3.5",
        "nn/positions/base",
        "PositionEncoding.embed",
    ),
    "token_types": _kind(
        "Token types",
        "x_i + S_(s_i)",
        "Devlin et al. 2019, section 3",
        "nn/embeddings",
        "InputEmbedding.__call__",
    ),
    "embedding_norm": _kind(
        "Norm of the embeddings",
        "norm(x)",
        "Devlin et al. 2019 (published code)",
        "nn/embeddings",
        "InputEmbedding.__call__",
    ),
    "norm_before": _kind("Norm", "norm(x)", _NORM, "nn/residual", "Residual.before"),
    "queries": _kind(
        "Queries", "Q = x W^Q", "section 3.2.2", _ATTENTION, "MultiHeadAttention.projections"
    ),
    "keys": _kind(
        "Keys", "K = x W^K", "section 3.2.2", _ATTENTION, "MultiHeadAttention.projections"
    ),
    "values": _kind(
        "Values", "V = x W^V", "section 3.2.2", _ATTENTION, "MultiHeadAttention.projections"
    ),
    "products": _kind(
        "Products of queries and keys", "Q K^T", "section 3.2.1", "nn/heads", "head_products"
    ),
    "scale": _kind("Scale", "(Q K^T)/√(d_k)", "section 3.2.1", _ATTENTION, "attention_logits"),
    "bias": _kind(
        "Position bias",
        "(Q K^T)/√(d_k) + B",
        "section 3.5",
        "nn/positions/base",
        "PositionEncoding.logit_bias",
    ),
    "cap": _kind("Cap", "c tanh(z/c)", "Gemma 2 (2024), section 2", "nn/softmax", "capped"),
    "mask": _kind(
        "Mask",
        'z_(i j) = −∞ "where" i "does not see" j',
        "section 3.2.3",
        "nn/masks",
        "padding_mask",
    ),
    "softmax": _kind(
        "Softmax",
        "A_(i j) = e^(z_(i j))/(∑_s e^(z_(i s)))",
        "section 3.2.1",
        "nn/softmax",
        "softmax",
    ),
    "heads": _kind(
        "Heads",
        "head = softmax((Q K^T)/√(d_k)) V",
        "section 3.2.1, equation 1",
        "nn/heads",
        "head_sums",
    ),
    "output": _kind(
        "Output matrix",
        "Concat(head_1, …, head_h) W^O",
        "section 3.2.2",
        _ATTENTION,
        "MultiHeadAttention.attend",
    ),
    "hidden": _kind(
        "Feed-forward, inner layer",
        "h = max(0, x W_1 + b_1)",
        "section 3.3, equation 2",
        "nn/feed_forward",
        "FeedForward.__call__",
    ),
    "feed_forward": _kind(
        "Feed-forward, outer layer",
        "FFN(x) = h W_2 + b_2",
        "section 3.3, equation 2",
        "nn/feed_forward",
        "FeedForward.__call__",
    ),
    "norm_after": _kind("Norm", "norm(x)", _NORM, "nn/residual", "Residual.after"),
    "residual": _kind(
        "Residual", "x + Sublayer(x)", "section 3.1", "nn/residual", "Residual.after"
    ),
    "final_norm": _kind("Final norm", "norm(x)", _NORM, "nn/norms", "final_norm"),
    "prediction_head": _kind(
        "Prediction head",
        "norm(activation(x W + b))",
        "Devlin et al. 2019 (published code)",
        "models/encoder_only",
        "PredictionHead.__call__",
    ),
    "logits": _kind("Logits", "z = x E^T", "section 3.4", "nn/embeddings", "Unprojected.logits"),
    "next": _kind(
        "The likeliest next tokens",
        "P(t) = e^(z_t)/(∑_s e^(z_s))",
        "section 3.4",
        "nn/embeddings",
        "Unprojected.logits",
    ),
    "filled": _kind(
        "What belongs here",
        "P(t) = e^(z_t)/(∑_s e^(z_s))",
        "Devlin et al. 2019, section 3.1",
        "models/encoder_only",
        "EncoderOnly.unprojected",
    ),
    "classes": _kind(
        "Classes",
        "P(c) = e^(z_c)/(∑_k e^(z_k))",
        "Devlin et al. 2019, section 3.2",
        "models/classifier",
        "TextClassifier.__call__",
    ),
    "cache": _kind(
        "A token goes in, the cache grows",
        "K ← (K; x_t W^K), V ← (V; x_t W^V)",
        "section 3.1 (auto-regressive)",
        "nn/cache",
        "KVCache.append",
    ),
    "past": _kind(
        "The new query meets the past",
        "softmax((q_t K^T)/√(d_k))",
        "section 3.2.3",
        _ATTENTION,
        "MultiHeadAttention.self_attend",
    ),
    "source": _kind(
        "The new query meets the source",
        "softmax((q_t K^T)/√(d_k))",
        "section 3.2.3",
        _ATTENTION,
        "MultiHeadAttention.cross_attend",
    ),
}

_PLURALS = {"query": "queries", "vocabulary entry": "vocabulary entries"}


@dataclasses.dataclass(frozen=True)
class Axis:
    """What an axis of an array counts.

    Attributes:
      name: of one of them, such as "token" or "feature".
      labels: each of them as it is called; empty: they are counted.
    """

    name: str
    labels: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class WalkStep:
    """One thing that a model computes for one example.

    Attributes:
      kind: an entry of `catalogue.KINDS`.
      group: where in the model, from the outside in: ("encoder", "layer 0", "self-attention").
      title: a few words.
      formula: in linear notation (`formulas.parsed`).
      section: of "Attention Is All You Need", or the source of what grew out of it.
      where: the code that computes it.
      explanation: what happens, with these numbers.
      values: the result, one axis for each of `axes`; -inf is what a mask removed.
      axes: what its axes count.
      example: the indices along the first axes of what the explanation speaks of.
      places: names of the values (`nn.hooks`) that it shows or is made from.
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

    @property
    def shape(self) -> str:
        """Such as "4 heads × 9 queries × 9 keys"."""
        sizes = zip(self.values.shape, self.axes, strict=True)
        return " × ".join(f"{size:,} {_plural(axis.name, size)}" for size, axis in sizes)


def _plural(name: str, size: int) -> str:
    return name if size == 1 else _PLURALS.get(name, f"{name}s")


@dataclasses.dataclass(frozen=True)
class Walk:
    """All steps of one example, in the order in which they are computed.

    Attributes:
      texts: what was read and written, by its name: "source" and "target", or "text".
      steps: all of them, with all numbers.
    """

    texts: Mapping[str, str]
    steps: Sequence[WalkStep]

    def of(self, kind: str, *group: str) -> list[WalkStep]:
        """The steps of a kind, of groups that begin like this."""
        return [
            step for step in self.steps if step.kind == kind and step.group[: len(group)] == group
        ]


# FOLDED analysis.walk.formulas: Formulas in linear notation, which reads well as it stands, and as
# trees of MathML. The notation is a part of UnicodeMath (Sargent 2016): a_b and a^b are indices,
# a/b is a fraction, √a a root; parentheses around a whole index, numerator, denominator or
# radicand only group. What stands in quotation marks are words. Example: "softmax((Q K^T)/√(d_k))
# V".


type Tree = list[str | Tree]
"""The name of an element of MathML, then its children: trees, or its text."""

_TOKEN = re.compile(r'"[^"]*"|[0-9]+(?:\.[0-9]+)?|[^\W\d_]+|\S')
_SCRIPTS = {"_": "msub", "^": "msup"}


def parsed(formula: str) -> Tree:
    """A formula as a tree of MathML, an <mrow>."""
    tokens = _TOKEN.findall(formula)
    tree = _row(tokens)
    if tokens:
        raise ValueError(f"formula {formula!r}: nothing opens this {tokens[0]}")
    return tree


def _row(tokens: list[str]) -> Tree:
    """All up to the end or to a parenthesis that closes; takes what it reads from the list."""
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
    found = {}
    while tokens and tokens[0] in _SCRIPTS:
        kind = _SCRIPTS[tokens.pop(0)]
        found[kind] = _bare(_atom(tokens))
    if len(found) == 2:
        return ["msubsup", base, found["msub"], found["msup"]]
    for kind, script in found.items():
        base = [kind, base, script]
    return base


def _atom(tokens: list[str]) -> Tree:
    token = tokens.pop(0)
    if token == "(":
        inner = _row(tokens)
        tokens.pop(0)
        return ["mrow", ["mo", "("], inner, ["mo", ")"]]
    if token == "√":
        return ["msqrt", _bare(_scripted(tokens))]
    if token.startswith('"'):
        return ["mtext", f"\N{NO-BREAK SPACE}{token[1:-1]}\N{NO-BREAK SPACE}"]
    if token[0].isdigit():
        return ["mn", token]
    return ["mi" if token.isalpha() else "mo", token]


def _bare(tree: Tree) -> Tree:
    """Without the parentheses around all of it."""
    is_group = tree[0] == "mrow" and len(tree) == 4 and tree[1] == ["mo", "("]
    return tree[2] if is_group else tree  # type: ignore[return-value]


# FOLDED analysis.walk.seen: What the steps of a walk are made from, and how they speak of it.


@dataclasses.dataclass(frozen=True)
class Seen:
    """One example, and what a model computed for it.

    Attributes:
      model: the model; `config` is that of its body.
      params: of the model.
      reading: the example.
      values: all places (`analysis.activations`).
      outputs: the vocabulary of what the model predicts.
    """

    model: Any
    params: Any
    config: TransformerConfig
    reading: ModelInputs
    values: Mapping[str, np.ndarray]
    outputs: Tokenizer | Labels

    def name_of(self, output: int) -> str:
        """A token that is predicted, as its vocabulary writes it, or a label."""
        if isinstance(self.outputs, Labels):
            return self.outputs.names[output]
        return self.outputs.pieces([output])[0]

    @property
    def mask(self) -> int | None:
        """The token that stands for hidden ones, where there is one."""
        return None if isinstance(self.outputs, Labels) else self.outputs.specials.mask

    def tokens(self, stack: str, name: str = "token") -> Axis:
        """An axis of the tokens that a stack reads."""
        return Axis(name, tuple(self.reading.pieces[stack]))

    def example(self, stack: str) -> int:
        """The token that explanations speak of: the one in the middle."""
        return len(self.reading.tokens[stack]) // 2

    def token(self, stack: str, index: int) -> str:
        """A token and its number, for sentences."""
        return f"{quoted(self.reading.pieces[stack][index])} ({index})"


def quoted(text: str) -> str:
    """In quotation marks, isolated so that its direction does not turn what stands around it."""
    return f"“\N{FIRST STRONG ISOLATE}{text}\N{POP DIRECTIONAL ISOLATE}”"


def number(x: float) -> str:
    """With three digits."""
    return f"{x:.3g}".replace("-", "−")


def some(values: np.ndarray) -> str:
    """The first numbers of a vector."""
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
    """A step; `instead` replaces what the catalogue says of its kind."""
    shared = KINDS[kind]._asdict() | {name: of for name, of in instead.items() if of is not None}
    named = tuple(axis if isinstance(axis, Axis) else Axis(axis) for axis in axes)
    return WalkStep(
        kind=kind,
        group=group,
        explanation=explanation,
        values=values,
        axes=named,
        places=tuple(places),
        example=tuple(map(int, example)),
        **shared,
    )
