"""Attention (section 3.2), from queries, keys and values to W^O."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from transformer_jax.analysis.walk.attending import Attending, head_products, softmax
from transformer_jax.analysis.walk.catalogue import Where
from transformer_jax.analysis.walk.seen import number, some, step
from transformer_jax.analysis.walk.step import Axis, Step
from transformer_jax.nn.positions import encoding_class


def attention_steps(attending: Attending) -> Iterator[Step]:
    """All steps of one attention, the norm before it and the residual after it left out."""
    yield from _projection_steps(attending)
    products = head_products(attending.value("queries"), attending.value("keys"))
    logits = products / math.sqrt(attending.config.d_k)
    yield from _product_steps(attending, products, logits)
    yield from (steps := _LogitSteps(attending, logits)).all()
    yield from _sum_steps(attending, steps.logits)


def _projection_steps(at: Attending) -> Iterator[Step]:
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


def _product_steps(at: Attending, products: np.ndarray, logits: np.ndarray) -> Iterator[Step]:
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

    def all(self) -> Iterator[Step]:
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

    def _mask(self, hidden: int, size: int) -> Step:
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

    def _step(self, kind: str, said: str, places: Sequence[str] = (), **instead: Any) -> Step:
        at = self.at
        return step(kind, at.group, said, self.logits, at.axes, places, at.shown, **instead)


def _sum_steps(at: Attending, logits: np.ndarray) -> Iterator[Step]:
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
