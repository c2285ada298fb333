"""Attention (section 3.2), from queries, keys and values to W^O."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from transformer_jax.analysis.walk.step import Axis, Seen, WalkStep, Where, number, some, step
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import encoding_class

# FOLDED analysis.walk.attending: One layer's attention, as the steps of a walk speak of it, and
# its formulas in NumPy. H heads, G heads of keys and values, T queries, S keys, K key size of a
# head.


@dataclasses.dataclass(frozen=True)
class Attending:
    """One layer's attention of one kind.

    Attributes:
      seen: the example.
      path: of the module.
      stack, source: whose tokens ask, and whose are attended to.
      group: of its steps.
      config: of the layer.
    """

    seen: Seen
    path: str
    stack: str
    source: str
    group: tuple[str, ...]
    config: TransformerConfig

    def place(self, name: str) -> str:
        """Of a value of this attention."""
        return f"{self.path}.{name}"

    def value(self, name: str) -> np.ndarray:
        """One that the model computed."""
        return self.seen.values[self.place(name)]

    @property
    def is_cross(self) -> bool:
        """Whether a decoder attends to an encoder."""
        return self.stack != self.source

    @property
    def axes(self) -> tuple[Axis, Axis, Axis]:
        """Of products and weights."""
        seen = self.seen
        return Axis("head"), seen.tokens(self.stack, "query"), seen.tokens(self.source, "key")

    @property
    def example(self) -> tuple[int, int]:
        """A query, and the key that takes most of its attention in the first head."""
        query = self.seen.example(self.stack)
        return query, int(self.value("weights")[0, query].argmax())

    @property
    def shown(self) -> tuple[int, int, int]:
        """The same with the head, as an index of products and weights."""
        return 0, *self.example

    def asks(self) -> str:
        """The query of the example, for sentences."""
        return self.seen.token(self.stack, self.example[0])

    def asked(self) -> str:
        """Its key."""
        return self.seen.token(self.source, self.example[1])

    def visible(self) -> Bool[np.ndarray, "T S"]:
        """True where a query sees a key."""
        tokens, window = self.seen.reading.tokens, self.config.attention_window
        queries, keys = (np.arange(len(tokens[stack])) for stack in (self.stack, self.source))
        distance = keys - queries[:, None]
        seen = np.ones(distance.shape, bool)
        if not self.is_cross and self.stack == "decoder":
            seen &= distance <= 0
        if not self.is_cross and window is not None:
            seen &= np.abs(distance) < window
        return seen


def head_products(
    queries: Float[np.ndarray, "H T K"], keys: Float[np.ndarray, "G S K"]
) -> Float[np.ndarray, "H T S"]:
    """Q K^T of each head, float64; heads that are neighbors may share their keys."""
    keys = np.repeat(keys, len(queries) // len(keys), axis=0)
    return np.einsum("htk,hsk->hts", queries, keys, dtype=np.float64)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def attention_steps(attending: Attending) -> Iterator[WalkStep]:
    """All steps of one attention, the norm before it and the residual after it left out."""
    yield from _projection_steps(attending)
    products = head_products(attending.value("queries"), attending.value("keys"))
    logits = products / math.sqrt(attending.config.d_k)
    yield from _product_steps(attending, products, logits)
    yield from (steps := _LogitSteps(attending, logits)).all()
    yield from _sum_steps(attending, steps.logits)


def _projection_steps(at: Attending) -> Iterator[WalkStep]:
    query, key = at.example
    methods = {"queries": "queries", "keys": "keys_values", "values": "keys_values"}
    for kind, matrix in (("queries", "W^Q"), ("keys", "W^K"), ("values", "W^V")):
        x = at.value(kind)
        stack, index = (at.stack, query) if kind == "queries" else (at.source, key)
        method = methods[kind] if at.is_cross else "projections"
        where = Where("transformer_jax/nn/attention.py", f"MultiHeadAttention.{method}")
        read = "the encoder's output for" if at.is_cross and kind != "queries" else "the vector of"
        said = (
            f"{matrix} makes {x.shape[2]} numbers for each of {len(x)} head{'s' * (len(x) > 1)} of "
            f"{read} {at.seen.token(stack, index)}; those of head 0 are {some(x[0, index])}."
            f"{_changes(at, kind)}"
        )
        axes = (Axis("head"), at.seen.tokens(stack), "feature")
        yield step(kind, at.group, said, x, axes, (at.place(kind),), (0, index), where=where)


def _changes(at: Attending, kind: str) -> str:
    """What was done to queries or keys behind their matrix."""
    c, done = at.config, []
    if kind == "values":
        shared = c.num_heads // c.key_value_heads
        return f" {shared} heads share each head of keys and values." if shared > 1 else ""
    if c.qk_norm:
        done.append("normed (qk_norm)")
    if kind == "queries" and c.attention_scale is not None:
        done.append(f"multiplied by {number(c.query_scale)} (attention_scale)")
    if not at.is_cross and encoding_class(c).has("rotate"):
        done.append(f"turned by their positions ({c.positions})")
    return f" They are shown as they meet: {', then '.join(done)}." if done else ""


def _product_steps(at: Attending, products: np.ndarray, logits: np.ndarray) -> Iterator[WalkStep]:
    (query, key), d_k = at.example, at.config.d_k
    product, logit = products[0, query, key], logits[0, query, key]
    places = (at.place("queries"), at.place("keys"))
    said = (
        f"In head 0 the query of {at.asks()} meets the key of {at.asked()}: the sum of {d_k} "
        f"products of their numbers is {number(product)}."
    )
    yield step("products", at.group, said, products, at.axes, places, at.shown)
    said = (
        f"{number(product)} / √d_k = {number(product)} / √{d_k} = {number(logit)}. Products grow "
        f"with d_k; without the scale the softmax would be pushed to where its gradient vanishes."
    )
    yield step("scale", at.group, said, logits, at.axes, places, at.shown)


class _LogitSteps:
    """What happens to scaled products before the softmax; `logits` are the last ones."""

    def __init__(self, at: Attending, logits: np.ndarray) -> None:
        self.at, self.logits = at, logits

    def all(self) -> Iterator[WalkStep]:
        """Bias, cap and mask."""
        at, (query, key) = self.at, self.at.example
        if (place := at.place("logit_bias")) in at.seen.values:
            bias = at.value("logit_bias")
            self.logits = self.logits + bias
            said = (
                f"For their positions, {query} and {key}, {number(bias[0, query, key])} is added: "
                f"{number(self.logits[0, query, key])}."
            )
            encoding = encoding_class(at.config)
            hook = "bias" if encoding.has("bias") else "logit_bias"
            yield self._step("bias", said, (place,), where=Where.of(encoding, hook))
        if (cap := at.config.logit_cap) is not None:
            self.logits = cap * np.tanh(self.logits / cap)
            said = f"No logit goes beyond {number(cap)}: {number(self.logits[0, query, key])}."
            yield self._step("cap", said)
        seen = at.visible()
        self.logits = np.where(seen, self.logits, -np.inf)
        yield self._mask(int((~seen).sum()), seen.size)

    def _mask(self, hidden: int, size: int) -> WalkStep:
        at = self.at
        window = None if at.is_cross else at.config.attention_window
        causal, formula = at.stack == "decoder" and not at.is_cross, None
        if not causal and window is None:
            said = (
                f"Every query sees all {len(at.seen.reading.tokens[at.source])} tokens: nothing "
                "is removed here. The mask removes only padding, which fills the model's rows up "
                "to one length and is left out here."
            )
            name = "segment_mask"
        else:
            order = "up to itself" if causal else "on either side"
            near = "" if window is None else f", less than {window} positions away"
            said = (
                f"A token sees those {order}{near}: {hidden} of {size} logits of each head become "
                "−∞, which the softmax turns into 0."
            )
            name = "look_ahead_mask" if causal else "window_mask"
            formula = None if near else 'z_(i j) = −∞ "where" j > i'
        where = Where("transformer_jax/nn/masks.py", name)
        return self._step("mask", said, where=where, formula=formula)

    def _step(self, kind: str, said: str, places: Sequence[str] = (), **instead: Any) -> WalkStep:
        at = self.at
        return step(kind, at.group, said, self.logits, at.axes, places, at.shown, **instead)


def _sum_steps(at: Attending, logits: np.ndarray) -> Iterator[WalkStep]:
    weights, heads, (query, key) = at.value("weights"), at.value("heads"), at.example
    apart = np.abs(softmax(logits) - weights).max()
    said = (
        f"Head 0 of {at.asks()} gives {100 * weights[0, query, key]:.1f}% of its attention to "
        f"{at.asked()}, more than to any other; each row sums to 1."
    )
    if apart > 1e-4:
        said += (
            f" These are the model's own weights; the softmax of the logits before is up to "
            f"{number(apart)} away, as the model multiplies with fewer digits, or is patched."
        )
    yield step("softmax", at.group, said, weights, at.axes, (at.place("weights"),), at.shown)

    adds = not at.is_cross and encoding_class(at.config).has("extra_values")
    said = (
        f"The values of all tokens, added up by these weights: head 0 of {at.asks()} finds "
        f"{some(heads[0, query])}."
    )
    said += " The positions add vectors for distances, likewise weighted." * adds
    formula = "head = softmax((Q K^T)/√(d_k) + B) V + R" if adds else None
    tokens, places = at.seen.tokens(at.stack), tuple(map(at.place, ("weights", "values", "heads")))
    axes = (Axis("head"), tokens, "feature")
    yield step("heads", at.group, said, heads, axes, places, (0, query), formula=formula)

    output = at.seen.values[at.path]
    said = (
        f"The {len(heads)} heads of {at.asks()}, {heads.shape[2]} numbers each, stand one behind "
        f"the other, {len(heads) * heads.shape[2]} in all; W^O makes {output.shape[1]} of them: "
        f"{some(output[query])}."
    )
    yield step("output", at.group, said, output, (tokens, "feature"), (at.path,), (query,))
