# SPDX-License-Identifier: Apache-2.0
"""Steps of a stack: embedding (sections 3.4, 3.5), then layers: sublayers with norm and residual
(sections 3.1, 3.3), of which attention (section 3.2) goes from queries, keys and values to W^O.

H heads, G heads of keys and values, T queries, S keys, K key size of a head.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from transformer_jax.lab.analysis.walk.kinds import NORMS, POSITIONS, RESIDUALS, inner_layer
from transformer_jax.lab.analysis.walk.step import Part, Trace, WalkStep, number, quoted, step
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.encoder_only import token_types
from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.layers import attention_class, feed_forward_class
from transformer_jax.nn.masks import look_ahead_mask, segment_mask, window_mask
from transformer_jax.nn.norms import make_norm
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

    def value(self, name: str) -> np.ndarray:
        """Activation of this attention, such as "weights"."""
        return self.trace.values[f"{self.path}.{name}"]

    @property
    def is_cross(self) -> bool:
        """True if a decoder attends to an encoder."""
        return self.stack != self.source

    @property
    def key(self) -> int:
        """Index of the key that explanations use: that of the largest weight in head 0."""
        return int(self.value("weights")[0, self.index].argmax())

    def logits_step(self, kind: str, values: Float[np.ndarray, "H T S"], **words: Any) -> WalkStep:
        """A step of logits or weights; words "query", "key" (tokens) and "result" are added."""
        trace = self.trace
        axes = ("head", trace.tokens(self.stack, "query"), trace.tokens(self.source, "key"))
        example = (0, self.index, self.key)
        words |= {"query": self.token, "key": trace.token(self.source, self.key)}
        words["result"] = values[example]
        return step(kind, self.group, values, axes, example, **words)


def attention_steps(at: AttentionPart) -> Iterator[WalkStep]:
    """All steps of one attention, without the norm before it and the residual after it."""
    c = at.config
    shown = (0, at.index, at.key)
    for kind in ("queries", "keys", "values"):
        yield _projection_step(at, kind)
    queries = at.value("queries")
    keys = at.value("keys")
    keys = np.repeat(keys, len(queries) // len(keys), axis=0)  # neighboring heads may share keys
    products = np.einsum("htk,hsk->hts", queries, keys, dtype=np.float64)
    yield at.logits_step("products", products, d_k=c.d_k)
    logits = products / math.sqrt(c.d_k)
    yield at.logits_step("scale", logits, d_k=c.d_k, product=products[shown])
    if f"{at.path}.logit_bias" in at.trace.values:
        bias = at.value("logit_bias")
        logits = logits + bias
        encoding = encoding_class(c)
        code = encoding.bias if encoding.has("bias") else encoding.logit_bias
        places = {"at_query": at.index, "at_key": at.key}
        yield at.logits_step("bias", logits, bias=bias[shown], code=code, **places)
    if c.logit_cap is not None:
        logits = c.logit_cap * np.tanh(logits / c.logit_cap)
        yield at.logits_step("cap", logits, cap=c.logit_cap)
    mask = _mask_step(at, logits)
    yield mask

    weights = at.value("weights")
    difference = np.abs(softmax(mask.values, axis=-1) - weights).max()
    caution = ""
    if difference > 1e-4:  # more than float32 rounds
        caution = (
            f" These are the model's own weights. They differ from the softmax of the logits shown "
            f"by up to {number(difference)}: the model computes in lower precision, or is patched."
        )
    yield at.logits_step("softmax", weights, share=f"{weights[shown]:.1%}", difference=caution)

    heads = at.value("heads")
    count, _, size = heads.shape
    words: dict[str, Any] = {"token": at.token, "result": heads[shown[:2]], "more": ""}
    if not at.is_cross and encoding_class(c).has("extra_values"):
        words["more"] = " Relative positions add weighted vectors, one for each distance."
        words["formula"] = "head = softmax((Q K^T)/√(d_k) + B) V + R"
    axes = ("head", at.trace.tokens(at.stack), "feature")
    yield step("heads", at.group, heads, axes, shown[:2], **words)
    y = at.trace.values[at.path]
    yield at.step("output", y, heads=count, size=size, total=count * size)


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
        "matrix": f"W^{kind[0].upper()}",
        "read": "the encoder's output for" if at.is_cross and not is_query else "the vector of",
        "token": at.trace.token(stack, index),
        "size": x.shape[2],
        "heads": f"{len(x)} head{'s' * (len(x) > 1)}",
        "result": x[0, index],
        "changes": _changes(at, kind),
        "code": code,
    }
    axes = ("head", at.trace.tokens(stack), "feature")
    return step(kind, at.group, x, axes, (0, index), **words)


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


def _mask_step(at: AttentionPart, logits: Float[np.ndarray, "H T S"]) -> WalkStep:
    """Step of the logits, -inf where a query does not attend to a key."""
    _, num_queries, num_keys = logits.shape
    window = None if at.is_cross else at.config.attention_window
    causal = at.stack == "decoder" and not at.is_cross
    if not causal and window is None:
        explanation = (
            f"Every query attends to all {num_keys} tokens. The mask removes only padding, "
            "which this page does not show."
        )
        return at.logits_step("mask", logits, explanation=explanation, code=segment_mask)
    # Below 0: the key is earlier.
    distance = np.arange(num_keys) - np.arange(num_queries)[:, None]
    hidden = causal & (distance > 0)
    words: dict[str, Any] = {"order": "up to itself" if causal else "on either side"}
    if window is None:
        words["formula"] = 'z_(i j) = −∞ "where" j > i'
    else:
        hidden |= np.abs(distance) >= window
        words["order"] += f", less than {window} positions away"
    words |= {"hidden": int(hidden.sum()), "size": hidden.size}
    words["code"] = look_ahead_mask if causal else window_mask
    return at.logits_step("mask", np.where(hidden, -np.inf, logits), **words)


def layer_steps(trace: Trace, stack: str, index: int) -> Iterator[WalkStep]:
    """Steps of all sublayers of a layer."""
    stream = f"{stack}.layer_{index - 1}" if index else f"{stack}.input"
    for name in ("self_attention", "cross_attention", "feed_forward"):
        path = f"{stack}.layer_{index}.{name}"
        if path in trace.values:
            part = trace.part(stack, f"layer {index}", name.replace("_", "-"))
            yield from _sublayer_steps(part, index, name, trace.values[stream])
            stream = f"{path}_residual"


def _sublayer_steps(part: Part, layer: int, name: str, stream: np.ndarray) -> Iterator[WalkStep]:
    """Steps of a sublayer with its norms and its residual connection."""
    values = part.trace.values
    c = part.trace.config.of_layer(layer)
    path = f"{part.stack}.layer_{layer}.{name}"
    if c.norm_placement != "post" and (c.first_norm or name != "self_attention"):
        yield norm_step(part, "norm_before", stream, values[f"{path}.input"])
    is_feed_forward = name == "feed_forward"
    sublayer: type = feed_forward_class(c) if is_feed_forward else attention_class(c)
    if name != "cross_attention" and sublayer not in (MultiHeadAttention, FeedForward):
        # How it computes is not explained.
        code = getattr(sublayer, "self_attend", None) or sublayer.__call__
        title = sublayer.__name__
        yield part.step("sublayer", values[path], title=title, name=title, code=code)
    elif is_feed_forward:
        yield from _feed_forward_steps(part, path)
    else:
        source = "encoder" if name == "cross_attention" else part.stack
        yield from attention_steps(AttentionPart(**vars(part), path=path, source=source, config=c))

    y = values[path]
    after = values[f"{path}_residual"]
    total = after
    addend = "the sublayer's output"
    if c.norm_placement == "sandwich":
        # The norm of the output is no hook point; it is what the residual adds.
        y = total - stream
        addend = "its norm"
        yield norm_step(part, "norm_after", values[path], y)
    elif c.norm_placement == "post":
        total = stream + y  # `after` is its norm
    words: dict[str, Any] = {"addend": addend, "added": y[part.index]}
    words["formula"], words["section"] = RESIDUALS[c.norm_placement]
    yield part.step("residual", total, stream=stream[part.index], **words)
    if c.norm_placement == "post":
        yield norm_step(part, "norm_after", total, after)


def norm_step(part: Part, kind: str, x: np.ndarray, y: np.ndarray) -> WalkStep:
    """Step of a norm of x, whose result is y."""
    c = part.trace.config
    at = x[part.index]
    words: dict[str, Any] = {"shifted": " and shifted" * (c.norm == "layer")}
    words["before"] = f"have the root mean square {number(np.sqrt(np.square(at).mean()))}"
    if c.norm in ("layer", "layer_unbiased"):
        centre = f"have mean {number(at.mean())}"
        words["before"] = f"{centre} and standard deviation {number(at.std())}"
    words["formula"], words["section"] = NORMS.get(c.norm, (None, None))
    return part.step(kind, y, code=type(make_norm(c)).__call__, **words)


def _feed_forward_steps(part: Part, path: str) -> Iterator[WalkStep]:
    c = part.trace.config
    hidden = part.trace.values[f"{path}.hidden"]
    neurons = hidden[part.index]
    largest = int(np.abs(neurons).argmax())
    words: dict[str, Any] = {"active": int((neurons > 0).sum())}
    words |= {"neuron": largest, "largest": neurons[largest]}
    words["formula"], words["section"] = inner_layer(c)
    yield part.step("hidden", hidden, "neuron", largest, **words)
    outer_formula = None if c.feed_forward_bias else "FFN(x) = h W_2"
    y = part.trace.values[path]
    yield part.step("feed_forward", y, neurons=len(neurons), formula=outer_formula)


def embedding_steps(trace: Trace, stack: str) -> Iterator[WalkStep]:
    """Steps from a stack's text to the input of its first layer."""
    c = trace.config
    part = trace.part(stack, "embedding")
    index = part.index
    reading = trace.reading
    texts = reading.texts
    text = texts.get("source" if stack == "encoder" else "target", texts.get("text"))
    subject = "The text" if text is None else quoted(text)
    if stack == "decoder" and "encoder" in reading.tokens:
        subject += ", shifted right after a start token,"
    ids = np.array(reading.tokens[stack])
    count = len(ids)
    axes = [trace.tokens(stack)]
    yield step("tokens", part.group, np.arange(count), axes, subject=subject, count=count)
    yield step("ids", part.group, ids, axes, (index,), token=part.token, id=ids[index])

    # Positions of a stack, or of a model with one stack.
    place = {"encoder": "source_positions", "decoder": "target_positions"}[stack]
    if f"{place}.input" not in trace.values:
        place = "input.positions"
    embedded = trace.values[f"{place}.input"]
    scale = math.sqrt(c.d_model) if c.scale_embeddings else 1.0
    yield part.step("embedding", embedded / scale, id=ids[index])
    if c.scale_embeddings:
        yield part.step("embedding_scale", embedded, scale=f"{scale:.4g}")

    encoding = encoding_class(c)
    x = trace.values[place]
    if encoding.has("embed"):
        code = encoding.embed
        formula = POSITIONS.get(encoding.__name__)
        yield part.step("positions", x - embedded, formula=formula, code=code)
        yield part.step("embedded", x, code=code)
    if "token_types" in trace.params.get("input", {}):
        tokens, positions = reading.inputs[:2]
        batch = token_types(jnp.asarray(tokens), jnp.asarray(positions), c.separator_id)
        types = np.minimum(np.asarray(batch)[0, :count], c.num_token_types - 1)
        x = x + np.asarray(trace.params["input"]["token_types"])[types]
        yield part.step("token_types", x, type=types[index])
    if c.embedding_norm:
        norm_code = None if "input.positions" in trace.values else EncoderDecoder.encode
        yield part.step("embedding_norm", trace.values[f"{stack}.input"], code=norm_code)
