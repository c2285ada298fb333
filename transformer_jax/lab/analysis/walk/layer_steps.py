# SPDX-License-Identifier: Apache-2.0
"""Steps of a stack: embedding (sections 3.4, 3.5), then layers: sublayers with norm and residual
(sections 3.1, 3.3).
"""

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer_jax.lab.analysis.walk.attention_steps import AttentionPart, attention_steps
from transformer_jax.lab.analysis.walk.kinds import NORMS, POSITIONS, RESIDUALS, inner_layer
from transformer_jax.lab.analysis.walk.step import Part, Trace, WalkStep, number, quoted, step
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.encoder_only import token_types
from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.layers import attention_class, feed_forward_class
from transformer_jax.nn.norms import make_norm
from transformer_jax.nn.positions import encoding_class

_TITLES = {
    "self_attention": "self-attention",
    "cross_attention": "cross-attention",
    "feed_forward": "feed-forward",
}


def layer_steps(trace: Trace, stack: str, index: int) -> Iterator[WalkStep]:
    """Steps of all sublayers of a layer."""
    stream = f"{stack}.layer_{index - 1}" if index else f"{stack}.input"
    for name, title in _TITLES.items():
        path = f"{stack}.layer_{index}.{name}"
        if path in trace.values:
            part = trace.part(stack, f"layer {index}", title)
            yield from _sublayer_steps(part, index, name, trace.values[stream])
            stream = f"{path}_residual"


def _sublayer_steps(part: Part, layer: int, name: str, stream: np.ndarray) -> Iterator[WalkStep]:
    """Steps of a sublayer with its norms and its residual connection."""
    values = part.trace.values
    c = part.trace.config.of_layer(layer)
    path = f"{part.stack}.layer_{layer}.{name}"
    if c.norm_placement != "post" and (c.first_norm or name != "self_attention"):
        yield norm_step(part, "norm_before", stream, f"{path}.input")
    is_feed_forward = name == "feed_forward"
    sublayer: type = feed_forward_class(c) if is_feed_forward else attention_class(c)
    if name != "cross_attention" and sublayer not in (MultiHeadAttention, FeedForward):
        # How it computes is not explained.
        code = getattr(sublayer, "self_attend", None) or sublayer.__call__
        texts = {"code": code, "title": sublayer.__name__}
        yield part.step("sublayer", values[path], (path,), texts, name=sublayer.__name__)
    elif is_feed_forward:
        yield from _feed_forward_steps(part, path)
    else:
        source = "encoder" if name == "cross_attention" else part.stack
        yield from attention_steps(AttentionPart(**vars(part), path=path, source=source, config=c))

    y = values[path]
    after = f"{path}_residual"
    total = values[after]
    addend = "the sublayer's output"
    if c.norm_placement == "sandwich":
        # The norm of the output is no hook point; it is what the residual adds.
        y = total - stream
        addend = "its norm"
        yield norm_step(part, "norm_after", values[path], after, y)
    elif c.norm_placement == "post":
        total = stream + y  # of which `after` is the norm
    formula, section = RESIDUALS[c.norm_placement]
    words = {"stream": stream[part.index], "addend": addend, "added": y[part.index]}
    texts = {"formula": formula, "section": section}
    yield part.step("residual", total, (path, after), texts, **words)
    if c.norm_placement == "post":
        yield norm_step(part, "norm_after", total, after)


def norm_step(
    part: Part, kind: str, x: np.ndarray, place: str, y: np.ndarray | None = None
) -> WalkStep:
    """Step of a norm of x. Its result is y, by default the activation at `place`."""
    c = part.trace.config
    at = x[part.index]
    is_centred = c.norm in ("layer", "layer_unbiased")
    before = f"have the root mean square {number(np.sqrt(np.square(at).mean()))}"
    if is_centred:
        deviation = np.sqrt(np.square(at - at.mean()).mean())
        before = f"have mean {number(at.mean())} and standard deviation {number(deviation)}"
    formula, section = NORMS.get(c.norm, (None, None))
    code = type(make_norm(c)).__call__
    texts = {"formula": formula, "section": section, "code": code}
    y = part.trace.values[place] if y is None else y
    shifted = " and shifted" * (c.norm == "layer")
    return part.step(kind, y, (place,), texts, before=before, shifted=shifted)


def _feed_forward_steps(part: Part, path: str) -> Iterator[WalkStep]:
    c = part.trace.config
    hidden = part.trace.values[f"{path}.hidden"]
    neurons = hidden[part.index]
    largest = int(np.abs(neurons).argmax())
    formula, section = inner_layer(c)
    yield part.step(
        "hidden",
        hidden,
        (f"{path}.input", f"{path}.hidden"),
        {"formula": formula, "section": section},
        axis="neuron",
        entry=largest,
        active=int((neurons > 0).sum()),
        neuron=largest,
        largest=neurons[largest],
    )
    texts = {"formula": None if c.feed_forward_bias else "FFN(x) = h W_2"}
    y = part.trace.values[path]
    yield part.step("feed_forward", y, (path,), texts, neurons=len(neurons))


def embedding_steps(trace: Trace, stack: str) -> Iterator[WalkStep]:
    """Steps from a stack's text to the input of its first layer."""
    c = trace.config
    part = trace.part(stack, "embedding")
    ids = np.array(trace.reading.tokens[stack])
    yield from _token_steps(part, ids)

    # Positions of a stack, or of a model with one stack.
    place = {"encoder": "source_positions", "decoder": "target_positions"}[stack]
    if f"{place}.input" not in trace.values:
        place = "input.positions"
    embedded = trace.values[f"{place}.input"]
    places = (f"{place}.input",)
    scale = math.sqrt(c.d_model) if c.scale_embeddings else 1.0
    yield part.step("embedding", embedded / scale, places, id=ids[part.index])
    if c.scale_embeddings:
        yield part.step("embedding_scale", embedded, places, scale=f"{scale:.4g}")

    encoding = encoding_class(c)
    x = trace.values[place]
    if encoding.has("embed"):
        texts: dict[str, Any] = {"code": encoding.embed}
        formula = {"formula": POSITIONS.get(encoding.__name__)}
        yield part.step("positions", x - embedded, (place,), texts | formula)
        yield part.step("embedded", x, (place,), texts)
    yield from _type_and_norm_steps(part, x)


def _token_steps(part: Part, ids: np.ndarray) -> Iterator[WalkStep]:
    reading = part.trace.reading
    tokens = part.trace.tokens(part.stack)
    name = "source" if part.stack == "encoder" else "target"
    text = reading.texts.get(name, reading.texts.get("text"))
    subject = "The text" if text is None else quoted(text)
    if part.stack == "decoder" and "encoder" in reading.tokens:
        subject += ", shifted right after a start token,"
    count = len(ids)
    yield step("tokens", part.group, np.arange(count), [tokens], subject=subject, count=count)
    index = part.index
    words = {"token": part.token, "id": ids[index]}
    yield step("ids", part.group, ids, [tokens], example=(index,), **words)


def _type_and_norm_steps(part: Part, x: np.ndarray) -> Iterator[WalkStep]:
    """Steps of BERT's token types and of the norm before the first layer, if the model has them."""
    trace = part.trace
    c = trace.config
    place = f"{part.stack}.input"
    if "token_types" in trace.params.get("input", {}):
        tokens, positions = trace.reading.inputs[:2]
        batch = token_types(jnp.asarray(tokens), jnp.asarray(positions), c.separator_id)
        types = np.minimum(np.asarray(batch)[0, : len(x)], c.num_token_types - 1)
        x = x + np.asarray(trace.params["input"]["token_types"])[types]
        yield part.step("token_types", x, (place,), type=types[part.index])
    if c.embedding_norm:
        has_two_stacks = "input.positions" not in trace.values
        texts = {"code": EncoderDecoder.encode if has_two_stacks else None}
        yield part.step("embedding_norm", trace.values[place], (place,), texts)
