# SPDX-License-Identifier: Apache-2.0
"""Steps of one attention (section 3.2), from queries, keys and values to W^O.

H heads, G heads of keys and values, T queries, S keys, K key size of a head.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from transformer_jax.lab.analysis.walk.step import Axis, Trace, WalkStep, Where, number, some, step
from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.masks import look_ahead_mask, segment_mask, window_mask
from transformer_jax.nn.positions import encoding_class


@dataclasses.dataclass(frozen=True)
class AttentionTrace:
    """Self- or cross-attention of one layer.

    Attributes:
      trace: the example.
      path: path of the attention module.
      stack: stack of the queries.
      source: stack of the keys.
      group: group of the steps.
      config: config of the layer.
    """

    trace: Trace
    path: str
    stack: str
    source: str
    group: tuple[str, ...]
    config: TransformerConfig

    def place(self, name: str) -> str:
        """Path of an activation of this attention."""
        return f"{self.path}.{name}"

    def value(self, name: str) -> np.ndarray:
        """Activation of this attention, such as "weights"."""
        return self.trace.values[self.place(name)]

    @property
    def is_cross(self) -> bool:
        """True if a decoder attends to an encoder."""
        return self.stack != self.source

    @property
    def axes(self) -> tuple[Axis, Axis, Axis]:
        """Axes of logits and weights."""
        trace = self.trace
        return Axis("head"), trace.tokens(self.stack, "query"), trace.tokens(self.source, "key")

    @property
    def example(self) -> tuple[int, int]:
        """Example query, and the key with its largest weight in head 0."""
        query = self.trace.example(self.stack)
        return query, int(self.value("weights")[0, query].argmax())

    @property
    def shown(self) -> tuple[int, int, int]:
        """Index of the example in logits and weights: head, query, key."""
        return 0, *self.example

    def query_token(self) -> str:
        """Token of the example query, for explanations."""
        return self.trace.token(self.stack, self.example[0])

    def key_token(self) -> str:
        """Token of the example key, for explanations."""
        return self.trace.token(self.source, self.example[1])

    def visible(self) -> Bool[np.ndarray, "T S"]:
        """True where a query attends to a key."""
        tokens = self.trace.reading.tokens
        window = self.config.attention_window
        queries, keys = (np.arange(len(tokens[stack])) for stack in (self.stack, self.source))
        distance = keys - queries[:, None]  # below 0: the key is earlier
        visible = np.ones(distance.shape, bool)
        if not self.is_cross and self.stack == "decoder":
            visible &= distance <= 0
        if not self.is_cross and window is not None:
            visible &= np.abs(distance) < window
        return visible


def head_products(
    queries: Float[np.ndarray, "H T K"], keys: Float[np.ndarray, "G S K"]
) -> Float[np.ndarray, "H T S"]:
    """Q K^T of each head in float64; neighboring heads may share keys."""
    keys = np.repeat(keys, len(queries) // len(keys), axis=0)
    return np.einsum("htk,hsk->hts", queries, keys, dtype=np.float64)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Softmax over the last axis, in NumPy."""
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def attention_steps(at: AttentionTrace) -> Iterator[WalkStep]:
    """All steps of one attention, without the norm before it and the residual after it."""
    yield from _projection_steps(at)
    products = head_products(at.value("queries"), at.value("keys"))
    logits = products / math.sqrt(at.config.d_k)
    yield from _product_steps(at, products, logits)
    steps = _LogitSteps(at, logits)
    yield from steps.all()
    yield from _sum_steps(at, steps.logits)  # which `all` has changed


def _projection_steps(at: AttentionTrace) -> Iterator[WalkStep]:
    query, key = at.example
    methods = {"queries": "queries", "keys": "keys_values", "values": "keys_values"}
    for kind, matrix in (("queries", "W^Q"), ("keys", "W^K"), ("values", "W^V")):
        x = at.value(kind)
        stack, index = (at.stack, query) if kind == "queries" else (at.source, key)
        method = methods[kind] if at.is_cross else "projections"
        code = Where.of(getattr(MultiHeadAttention, method))
        read = "the encoder's output for" if at.is_cross and kind != "queries" else "the vector of"
        explanation = (
            f"{matrix} projects {read} {at.trace.token(stack, index)} to {x.shape[2]} numbers for "
            f"each of {len(x)} head{'s' * (len(x) > 1)}; head 0 has {some(x[0, index])}."
            f"{_changes(at, kind)}"
        )
        axes = (Axis("head"), at.trace.tokens(stack), "feature")
        yield step(kind, at.group, explanation, x, axes, (at.place(kind),), (0, index), where=code)


def _changes(at: AttentionTrace, kind: str) -> str:
    """Changes to queries or keys after their projection, as a sentence."""
    c = at.config
    if kind == "values":
        shared = c.num_heads // c.key_value_heads
        return f" {shared} heads share each head of keys and values." if shared > 1 else ""
    changes = []
    if c.qk_norm:
        changes.append("normed (qk_norm)")
    if kind == "queries" and c.attention_scale is not None:
        changes.append(f"multiplied by {number(c.query_scale)} (attention_scale)")
    if not at.is_cross and encoding_class(c).has("rotate"):
        changes.append(f"rotated by their positions ({c.positions})")
    return f" They are shown as attention uses them: {', then '.join(changes)}." if changes else ""


def _product_steps(
    at: AttentionTrace, products: np.ndarray, logits: np.ndarray
) -> Iterator[WalkStep]:
    query, key = at.example
    d_k = at.config.d_k
    product = products[0, query, key]
    places = (at.place("queries"), at.place("keys"))
    explanation = (
        f"In head 0 the dot product of the query of {at.query_token()} and the key of "
        f"{at.key_token()}, a sum of {d_k} products, is {number(product)}."
    )
    yield step("products", at.group, explanation, products, at.axes, places, at.shown)
    explanation = (
        f"{number(product)} / √d_k = {number(product)} / √{d_k} = {number(logits[0, query, key])}. "
        "Products grow with d_k; without the scale the softmax would saturate, and its gradient "
        "vanish."
    )
    yield step("scale", at.group, explanation, logits, at.axes, places, at.shown)


class _LogitSteps:
    """Steps from scaled products to the softmax: bias, cap and mask; `logits` is the result."""

    def __init__(self, at: AttentionTrace, logits: np.ndarray) -> None:
        self.at = at
        self.logits = logits

    def all(self) -> Iterator[WalkStep]:
        """Steps of bias, cap and mask."""
        at = self.at
        query, key = at.example
        place = at.place("logit_bias")
        if place in at.trace.values:
            bias = at.value("logit_bias")
            self.logits = self.logits + bias
            explanation = (
                f"The bias of positions {query} and {key}, {number(bias[0, query, key])}, gives "
                f"the logit {number(self.logits[0, query, key])}."
            )
            encoding = encoding_class(at.config)
            hook = "bias" if encoding.has("bias") else "logit_bias"
            yield self._step("bias", explanation, (place,), where=Where.of(getattr(encoding, hook)))
        cap = at.config.logit_cap
        if cap is not None:
            self.logits = cap * np.tanh(self.logits / cap)
            explanation = f"No logit exceeds {number(cap)}: {number(self.logits[0, query, key])}."
            yield self._step("cap", explanation)
        visible = at.visible()
        self.logits = np.where(visible, self.logits, -np.inf)
        yield self._mask(int((~visible).sum()), visible.size)

    def _mask(self, hidden: int, size: int) -> WalkStep:
        at = self.at
        window = None if at.is_cross else at.config.attention_window
        causal = at.stack == "decoder" and not at.is_cross
        formula = None
        if not causal and window is None:
            explanation = (
                f"Every query attends to all {len(at.trace.reading.tokens[at.source])} tokens. The "
                "mask removes only padding, which this page does not show."
            )
            mask: Callable[..., Any] = segment_mask
        else:
            order = "up to itself" if causal else "on either side"
            near = "" if window is None else f", less than {window} positions away"
            explanation = (
                f"A token attends to those {order}{near}: {hidden} of {size} logits of each head "
                "become −∞, and their weights 0."
            )
            mask = look_ahead_mask if causal else window_mask
            formula = None if near else 'z_(i j) = −∞ "where" j > i'
        return self._step("mask", explanation, where=Where.of(mask), formula=formula)

    def _step(
        self, kind: str, explanation: str, places: Sequence[str] = (), **instead: Any
    ) -> WalkStep:
        at = self.at
        return step(kind, at.group, explanation, self.logits, at.axes, places, at.shown, **instead)


def _sum_steps(at: AttentionTrace, logits: np.ndarray) -> Iterator[WalkStep]:
    weights = at.value("weights")
    heads = at.value("heads")
    query, key = at.example
    difference = np.abs(softmax(logits) - weights).max()
    explanation = (
        f"Head 0 of {at.query_token()} gives {100 * weights[0, query, key]:.1f}% of its attention "
        f"to {at.key_token()}, its largest weight; each row sums to 1."
    )
    if difference > 1e-4:  # more than float32 rounds
        explanation += (
            f" These are the model's own weights. They differ from the softmax of the logits shown "
            f"by up to {number(difference)}: the model computes in lower precision, or is patched."
        )
    yield step("softmax", at.group, explanation, weights, at.axes, (at.place("weights"),), at.shown)

    adds_positions = not at.is_cross and encoding_class(at.config).has("extra_values")
    explanation = (
        f"The sum of all values, weighted by these weights: head 0 of {at.query_token()} has "
        f"{some(heads[0, query])}."
    )
    formula = None
    if adds_positions:
        explanation += " Relative positions add weighted vectors, one for each distance."
        formula = "head = softmax((Q K^T)/√(d_k) + B) V + R"
    tokens = at.trace.tokens(at.stack)
    places = tuple(map(at.place, ("weights", "values", "heads")))
    axes = (Axis("head"), tokens, "feature")
    yield step("heads", at.group, explanation, heads, axes, places, (0, query), formula=formula)

    output = at.trace.values[at.path]
    explanation = (
        f"The {len(heads)} heads of {at.query_token()}, {heads.shape[2]} numbers each, are "
        f"concatenated to {len(heads) * heads.shape[2]} numbers; W^O projects them to "
        f"{output.shape[1]}: {some(output[query])}."
    )
    yield step("output", at.group, explanation, output, (tokens, "feature"), (at.path,), (query,))
