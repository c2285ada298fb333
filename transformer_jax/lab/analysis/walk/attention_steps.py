# SPDX-License-Identifier: Apache-2.0
"""Steps of one attention (section 3.2), from queries, keys and values to W^O.

H heads, G heads of keys and values, T queries, S keys, K key size of a head.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from transformer_jax.lab.analysis.walk.step import (
    Part,
    WalkStep,
    number,
    percent,
    step,
)
from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.masks import look_ahead_mask, segment_mask, window_mask
from transformer_jax.nn.positions import encoding_class


@dataclasses.dataclass(frozen=True)
class AttentionPart(Part):
    """Self- or cross-attention of one layer; `stack` is that of the queries.

    Attributes:
      path: path of the attention module.
      source: stack of the keys.
      config: config of the layer.
    """

    path: str
    source: str
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
    def key(self) -> int:
        """Index of the key that explanations use: that of the largest weight in head 0."""
        return int(self.value("weights")[0, self.index].argmax())

    def logits_step(
        self,
        kind: str,
        values: Float[np.ndarray, "H T S"],
        places: Sequence[str] = (),
        instead: Mapping[str, Any] = MappingProxyType({}),
        **words: Any,
    ) -> WalkStep:
        """A step of logits or weights; words "query", "key" (tokens) and "result" are added."""
        queries = self.trace.tokens(self.stack, "query")
        keys = self.trace.tokens(self.source, "key")
        example = (0, self.index, self.key)
        words |= {"query": self.token, "key": self.trace.token(self.source, self.key)}
        words["result"] = values[example]
        axes = ("head", queries, keys)
        return step(kind, self.group, values, axes, places, example, instead, **words)

    def visible(self) -> Bool[np.ndarray, "T S"]:
        """True where a query attends to a key."""
        tokens = self.trace.reading.tokens
        window = self.config.attention_window
        # Below 0: the key is earlier.
        distance = np.arange(len(tokens[self.source])) - np.arange(len(tokens[self.stack]))[:, None]
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


def attention_steps(at: AttentionPart) -> Iterator[WalkStep]:
    """All steps of one attention, without the norm before it and the residual after it."""
    c = at.config
    shown = (0, at.index, at.key)
    for kind in ("queries", "keys", "values"):
        yield _projection_step(at, kind)
    products = head_products(at.value("queries"), at.value("keys"))
    places = (at.place("queries"), at.place("keys"))
    yield at.logits_step("products", products, places, d_k=c.d_k)
    logits = products / math.sqrt(c.d_k)
    yield at.logits_step("scale", logits, places, d_k=c.d_k, product=products[shown])
    place = at.place("logit_bias")
    if place in at.trace.values:
        bias = at.value("logit_bias")
        logits = logits + bias
        encoding = encoding_class(c)
        code = encoding.bias if encoding.has("bias") else encoding.logit_bias
        words = {"at_query": at.index, "at_key": at.key, "bias": bias[shown]}
        yield at.logits_step("bias", logits, (place,), {"code": code}, **words)
    if c.logit_cap is not None:
        logits = c.logit_cap * np.tanh(logits / c.logit_cap)
        yield at.logits_step("cap", logits, cap=c.logit_cap)
    visible = at.visible()
    logits = np.where(visible, logits, -np.inf)
    yield _mask_step(at, logits, visible)
    yield from _sum_steps(at, logits)


def _projection_step(at: AttentionPart, kind: str) -> WalkStep:
    """Step of queries, keys or values."""
    x = at.value(kind)
    is_query = kind == "queries"
    stack = at.stack if is_query else at.source
    index = at.index if is_query else at.key
    code: Any = MultiHeadAttention.projections
    if at.is_cross:
        code = MultiHeadAttention.queries if is_query else MultiHeadAttention.keys_values
    words = {
        "read": "the encoder's output for" if at.is_cross and not is_query else "the vector of",
        "token": at.trace.token(stack, index),
        "size": x.shape[2],
        "heads": f"{len(x)} head{'s' * (len(x) > 1)}",
        "result": x[0, index],
        "changes": _changes(at, kind),
    }
    axes = ("head", at.trace.tokens(stack), "feature")
    return step(kind, at.group, x, axes, (at.place(kind),), (0, index), {"code": code}, **words)


def _changes(at: AttentionPart, kind: str) -> str:
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


def _mask_step(at: AttentionPart, logits: np.ndarray, visible: np.ndarray) -> WalkStep:
    window = None if at.is_cross else at.config.attention_window
    causal = at.stack == "decoder" and not at.is_cross
    instead: dict[str, Any]
    if not causal and window is None:
        explanation = (
            f"Every query attends to all {visible.shape[1]} tokens. The mask removes only padding, "
            "which this page does not show."
        )
        return at.logits_step(
            "mask", logits, (), {"explanation": explanation, "code": segment_mask}
        )
    order = "up to itself" if causal else "on either side"
    instead = {"code": look_ahead_mask if causal else window_mask}
    if window is None:
        instead["formula"] = 'z_(i j) = −∞ "where" j > i'
    else:
        order += f", less than {window} positions away"
    hidden = int((~visible).sum())
    return at.logits_step(
        "mask", logits, (), instead, order=order, hidden=hidden, size=visible.size
    )


def _sum_steps(at: AttentionPart, logits: np.ndarray) -> Iterator[WalkStep]:
    weights = at.value("weights")
    heads = at.value("heads")
    difference = np.abs(softmax(logits) - weights).max()
    caution = ""
    if difference > 1e-4:  # more than float32 rounds
        caution = (
            f" These are the model's own weights. They differ from the softmax of the logits shown "
            f"by up to {number(difference)}: the model computes in lower precision, or is patched."
        )
    share = percent(weights[0, at.index, at.key])
    words: dict[str, Any] = {"share": share, "difference": caution}
    yield at.logits_step("softmax", weights, (at.place("weights"),), **words)

    instead = {}
    more = ""
    if not at.is_cross and encoding_class(at.config).has("extra_values"):
        more = " Relative positions add weighted vectors, one for each distance."
        instead["formula"] = "head = softmax((Q K^T)/√(d_k) + B) V + R"
    places = tuple(map(at.place, ("weights", "values", "heads")))
    axes = ("head", at.trace.tokens(at.stack), "feature")
    example = (0, at.index)
    words = {"token": at.token, "result": heads[example], "more": more}
    yield step("heads", at.group, heads, axes, places, example, instead, **words)

    count, _, size = heads.shape
    words = {"heads": count, "size": size, "total": count * size}
    yield at.step("output", at.trace.values[at.path], (at.path,), **words)
