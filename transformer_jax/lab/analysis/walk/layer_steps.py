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
from transformer_jax.lab.analysis.walk.step import Part, Trace, WalkStep, number, quoted
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
class SublayerPart(Part):
    """A sublayer; of attention, `stack` is that of the queries.

    Attributes:
      path: path of its module.
      config: config of the layer.
    """

    path: str
    config: TransformerConfig

    def value(self, name: str = "") -> np.ndarray:
        """Activation of this module, such as ".weights", or its output."""
        return self.trace.values[f"{self.path}{name}"]

    @property
    def is_cross(self) -> bool:
        """True if a decoder attends to an encoder."""
        return self.path.endswith("cross_attention")

    @property
    def keys(self) -> Part:
        """The keys of attention; explanations use that of the largest weight in head 0."""
        stack = "encoder" if self.is_cross else self.stack
        key = int(self.value(".weights")[0, self.index].argmax())
        return Part(self.trace, stack, self.group, key)

    def logits_step(self, kind: str, values: Float[np.ndarray, "H T S"], **words: Any) -> WalkStep:
        """A step of logits or weights; the word "key" (a token) is added."""
        axes = ("head", self.tokens("query"), self.keys.tokens("key"))
        example = (0, self.index, self.keys.index)
        return self.step(kind, values, axes, example, key=self.keys.token, **words)


def attention_steps(at: SublayerPart) -> Iterator[WalkStep]:
    """All steps of one attention, without the norm before it and the residual after it."""
    c = at.config
    shown = (0, at.index, at.keys.index)
    for kind in ("queries", "keys", "values"):
        yield _projection_step(at, kind)
    queries = at.value(".queries")
    # Neighboring heads may share keys.
    keys = np.repeat(at.value(".keys"), c.num_heads // c.key_value_heads, axis=0)
    products = np.einsum("htk,hsk->hts", queries, keys, dtype=np.float64)
    yield at.logits_step("products", products, d_k=c.d_k)
    logits = products / math.sqrt(c.d_k)
    yield at.logits_step("scale", logits, d_k=c.d_k, product=products[shown])
    if f"{at.path}.logit_bias" in at.trace.values:
        bias = at.value(".logit_bias")
        logits = logits + bias
        encoding = encoding_class(c)
        code = encoding.bias if encoding.has("bias") else encoding.logit_bias
        yield at.logits_step("bias", logits, bias=bias[shown], at_key=at.keys.index, code=code)
    if c.logit_cap is not None:
        logits = c.logit_cap * np.tanh(logits / c.logit_cap)
        yield at.logits_step("cap", logits, cap=c.logit_cap)
    mask = _mask_step(at, logits)
    yield mask

    weights = at.value(".weights")
    difference = np.abs(softmax(mask.values, axis=-1) - weights).max()
    caution = ""
    if difference > 1e-4:  # more than float32 rounds
        caution = (
            f" These are the model's own weights. They differ from the softmax of the logits shown "
            f"by up to {number(difference)}: the model computes in lower precision, or is patched."
        )
    yield at.logits_step("softmax", weights, difference=caution)

    heads = at.value(".heads")
    more = ""
    formula = None
    if not at.is_cross and encoding_class(c).has("extra_values"):
        more = " Relative positions add weighted vectors, one for each distance."
        formula = "head = softmax((Q K^T)/√(d_k) + B) V + R"
    yield at.vectors("heads", heads, more=more, formula=formula)
    count, _, size = heads.shape
    yield at.vectors("output", at.value(), heads=count, size=size, total=count * size)


def _projection_step(at: SublayerPart, kind: str) -> WalkStep:
    """Step of queries, keys or values."""
    x = at.value(f".{kind}")
    is_query = kind == "queries"
    code: Any = MultiHeadAttention.projections
    if at.is_cross:
        code = MultiHeadAttention.queries if is_query else MultiHeadAttention.keys_values
    words = {
        "matrix": f"W^{kind[0].upper()}",
        "read": "the encoder's output for" if at.is_cross and not is_query else "the vector of",
        "heads": f"{len(x)} head{'s' * (len(x) > 1)}",
        "changes": _changes(at, kind),
        "code": code,
    }
    return (at if is_query else at.keys).vectors(kind, x, **words)


def _changes(at: SublayerPart, kind: str) -> str:
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


def _mask_step(at: SublayerPart, logits: Float[np.ndarray, "H T S"]) -> WalkStep:
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
    order = "up to itself" if causal else "on either side"
    formula = None if window else 'z_(i j) = −∞ "where" j > i'
    if window:
        hidden |= np.abs(distance) >= window
        order += f", less than {window} positions away"
    logits = np.where(hidden, -np.inf, logits)
    count = int(hidden.sum())
    code = look_ahead_mask if causal else window_mask
    words = {"order": order, "hidden": count, "size": hidden.size}
    return at.logits_step("mask", logits, formula=formula, code=code, **words)


def layer_steps(trace: Trace, stack: str, index: int) -> Iterator[WalkStep]:
    """Steps of all sublayers of a layer."""
    stream = f"{stack}.layer_{index - 1}" if index else f"{stack}.input"
    config = trace.config.of_encoder if stack == "encoder" else trace.config
    for name in ("self_attention", "cross_attention", "feed_forward"):
        path = f"{stack}.layer_{index}.{name}"
        if path in trace.values:
            part = trace.part(stack, stack, f"layer {index}", name.replace("_", "-"))
            at = SublayerPart(**vars(part), path=path, config=config.of_layer(index))
            yield from _sublayer_steps(at, name, trace.values[stream])
            stream = f"{path}_residual"


def _sublayer_steps(at: SublayerPart, name: str, stream: np.ndarray) -> Iterator[WalkStep]:
    """Steps of a sublayer with its norms and its residual connection."""
    c = at.config
    if c.norm_placement != "post" and (c.first_norm or name != "self_attention"):
        yield norm_step(at, "norm_before", stream, at.value(".input"))
    is_feed_forward = name == "feed_forward"
    sublayer: type = feed_forward_class(c) if is_feed_forward else attention_class(c)
    if name != "cross_attention" and sublayer not in (MultiHeadAttention, FeedForward):
        # How it computes is not explained.
        code = getattr(sublayer, "self_attend", None) or sublayer.__call__
        title = sublayer.__name__
        yield at.vectors("sublayer", at.value(), title=title, name=title, code=code)
    elif is_feed_forward:
        yield from _feed_forward_steps(at)
    else:
        yield from attention_steps(at)

    y = at.value()
    after = at.value("_residual")
    total = after
    addend = "the sublayer's output"
    if c.norm_placement == "sandwich":
        # The norm of the output is no hook point; it is what the residual adds.
        y = total - stream
        addend = "its norm"
        yield norm_step(at, "norm_after", at.value(), y)
    elif c.norm_placement == "post":
        total = stream + y  # `after` is its norm
    formula, section = RESIDUALS[c.norm_placement]
    words = {"stream": stream[at.index], "addend": addend, "added": y[at.index]}
    yield at.vectors("residual", total, formula=formula, section=section, **words)
    if c.norm_placement == "post":
        yield norm_step(at, "norm_after", total, after)


def norm_step(part: Part, kind: str, x: np.ndarray, y: np.ndarray) -> WalkStep:
    """Step of a norm of x, whose result is y."""
    c = part.trace.config
    at = x[part.index]
    before = f"have the root mean square {number(np.sqrt(np.square(at).mean()))}"
    if c.norm in ("layer", "layer_unbiased"):
        before = f"have mean {number(at.mean())} and standard deviation {number(at.std())}"
    formula, section = NORMS.get(c.norm, (None, None))
    words: dict[str, Any] = {"formula": formula, "section": section, "before": before}
    words["shifted"] = " and shifted" * (c.norm in ("layer", "batch"))
    return part.vectors(kind, y, code=type(make_norm(c)).__call__, **words)


def _feed_forward_steps(at: SublayerPart) -> Iterator[WalkStep]:
    hidden = at.value(".hidden")
    neurons = hidden[at.index]
    largest = int(np.abs(neurons).argmax())
    formula, section = inner_layer(at.config)
    words: dict[str, Any] = {"formula": formula, "section": section, "neuron": largest}
    words["active"] = int((neurons > 0).sum())
    yield at.vectors("hidden", hidden, "neuron", [largest], **words)
    outer_formula = None if at.config.feed_forward_bias else "FFN(x) = h W_2"
    yield at.vectors("feed_forward", at.value(), neurons=len(neurons), formula=outer_formula)


def embedding_steps(trace: Trace, stack: str) -> Iterator[WalkStep]:
    """Steps from a stack's text to the input of its first layer."""
    c = trace.config
    part = trace.part(stack, stack, "embedding")
    index = part.index
    reading = trace.reading
    texts = reading.texts
    text = texts.get("source" if stack == "encoder" else "target", texts.get("text"))
    subject = "The text" if text is None else quoted(text)
    if stack == "decoder" and "encoder" in reading.tokens:
        subject += ", shifted right after a start token,"
    ids = np.array(reading.tokens[stack])
    count = len(ids)
    axes = [part.tokens()]
    yield part.step("tokens", np.arange(count), axes, subject=subject, count=count)
    yield part.step("ids", ids, axes, (index,))

    # Positions of a stack, or of a model with one stack.
    place = {"encoder": "source_positions", "decoder": "target_positions"}[stack]
    if f"{place}.input" not in trace.values:
        place = "input.positions"
    embedded = trace.values[f"{place}.input"]
    scale = math.sqrt(c.d_model) if c.scale_embeddings else 1.0
    yield part.vectors("embedding", embedded / scale, id=ids[index])
    if c.scale_embeddings:
        yield part.vectors("embedding_scale", embedded, scale=f"{scale:.4g}")

    encoding = encoding_class(c)
    x = trace.values[place]
    if encoding.has("embed"):
        code = encoding.embed
        formula = POSITIONS.get(encoding.__name__)
        yield part.vectors("positions", x - embedded, formula=formula, code=code)
        yield part.vectors("embedded", x, code=code)
    if "token_types" in trace.params.get("input", {}):
        tokens, positions = reading.inputs[:2]
        batch = token_types(jnp.asarray(tokens), jnp.asarray(positions), c.separator_id)
        types = np.minimum(np.asarray(batch)[0, :count], c.num_token_types - 1)
        x = x + np.asarray(trace.params["input"]["token_types"])[types]
        yield part.vectors("token_types", x, type=types[index])
    if c.embedding_norm:
        norm_code = None if "input.positions" in trace.values else EncoderDecoder.encode
        yield part.vectors("embedding_norm", trace.values[f"{stack}.input"], code=norm_code)
