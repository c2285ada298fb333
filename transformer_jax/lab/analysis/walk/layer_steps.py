# SPDX-License-Identifier: Apache-2.0
"""Steps of a stack: embedding (sections 3.4, 3.5), then layers: sublayers with norm and residual
(sections 3.1, 3.3).
"""

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer_jax.lab.analysis.walk.attention_steps import AttentionTrace, attention_steps
from transformer_jax.lab.analysis.walk.step import (
    Trace,
    WalkStep,
    Where,
    has_steps,
    number,
    quoted,
    some,
    step,
)
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.encoder_only import token_types
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.layers import attention_class, feed_forward_class
from transformer_jax.nn.norms import make_norm
from transformer_jax.nn.positions import encoding_class

_NORMS = {
    "layer": ("LayerNorm(x) = γ ⊙ (x − μ)/√(σ^2 + ε) + β", "section 3.1"),
    "rms": ("RMSNorm(x) = γ ⊙ x/√(mean(x^2) + ε)", "Zhang and Sennrich 2019"),
    "rms_plus_one": ("RMSNorm(x) = (1 + γ) ⊙ x/√(mean(x^2) + ε)", "Gemma (2024)"),
}
_ACTIVATIONS = {
    "relu": ("max(0, {})", ""),
    "gelu": ("GELU({})", "Hendrycks and Gimpel 2016"),
    "gelu_exact": ("GELU({})", "Hendrycks and Gimpel 2016"),
    "silu": ("SiLU({})", "Ramachandran et al. 2017"),
    "swish": ("SiLU({})", "Ramachandran et al. 2017"),
    "squared_relu": ("max(0, {})^2", "So et al. 2021"),
}
_RESIDUALS = {
    "pre": {"formula": "x + Sublayer(norm(x))", "section": "section 3.1; Xiong et al. 2020"},
    "sandwich": {
        "formula": "x + norm(Sublayer(norm(x)))",
        "section": "section 3.1; Ding et al. 2021",
    },
}
_TITLES = {
    "self_attention": "self-attention",
    "cross_attention": "cross-attention",
    "feed_forward": "feed-forward",
}


def layer_steps(trace: Trace, stack: str, index: int) -> Iterator[WalkStep]:
    """Steps of all sublayers of a layer."""
    stream = f"{stack}.layer_{index - 1}" if index else f"{stack}.input"
    for name in _TITLES:
        path = f"{stack}.layer_{index}.{name}"
        if path in trace.values:
            yield from _sublayer_steps(trace, stack, index, name, trace.values[stream])
            stream = f"{path}_residual"


def _sublayer_steps(
    trace: Trace, stack: str, index: int, name: str, stream: np.ndarray
) -> Iterator[WalkStep]:
    """Steps of a sublayer with its norms and its residual connection."""
    c = trace.config.of_layer(index)
    path = f"{stack}.layer_{index}.{name}"
    group = (stack, f"layer {index}", _TITLES[name])
    if c.norm_placement != "post":
        yield norm_step(trace, "norm_before", stack, group, stream, f"{path}.input")
    is_feed_forward = name == "feed_forward"
    sublayer: type = feed_forward_class(c) if is_feed_forward else attention_class(c)
    if name != "cross_attention" and not has_steps(sublayer):
        yield _output_step(trace, stack, group, path, sublayer)
    elif is_feed_forward:
        yield from _feed_forward_steps(trace, stack, group, path)
    else:
        source = "encoder" if name == "cross_attention" else stack
        yield from attention_steps(AttentionTrace(trace, path, stack, source, group, c))

    y = trace.values[path]
    after = f"{path}_residual"
    at = trace.example(stack)
    axes = (trace.tokens(stack), "feature")
    if c.norm_placement == "sandwich":
        # The norm of the output is no hook point; it is what the residual adds.
        y = trace.values[after] - stream
        yield norm_step(trace, "norm_after", stack, group, trace.values[path], after, y)
    # With "post", `after` is the norm of the sum.
    total = stream + y if c.norm_placement == "post" else trace.values[after]
    addend = "its norm" if c.norm_placement == "sandwich" else "the sublayer's output"
    explanation = (
        f"The stream of {trace.token(stack, at)} {some(stream[at])} plus {addend} {some(y[at])} is "
        f"{some(total[at])}."
    )
    instead = _RESIDUALS.get(c.norm_placement, {})
    yield step("residual", group, explanation, total, axes, (path, after), (at,), **instead)
    if c.norm_placement == "post":
        yield norm_step(trace, "norm_after", stack, group, total, after)


def _output_step(
    trace: Trace, stack: str, group: tuple[str, ...], path: str, sublayer: type
) -> WalkStep:
    """The output of a sublayer whose computation a walk does not explain."""
    y = trace.values[path]
    at = trace.example(stack)
    function = getattr(sublayer, "self_attend", None) or sublayer.__call__
    explanation = (
        f"{sublayer.__name__} computes {some(y[at])} for {trace.token(stack, at)}. How it does so "
        "is in its code."
    )
    axes = (trace.tokens(stack), "feature")
    instead: dict[str, Any] = {"where": Where.of(function), "title": sublayer.__name__}
    return step("sublayer", group, explanation, y, axes, (path,), (at,), **instead)


def norm_step(
    trace: Trace,
    kind: str,
    stack: str,
    group: tuple[str, ...],
    x: np.ndarray,
    place: str,
    y: np.ndarray | None = None,
) -> WalkStep:
    """Step of a norm of x. Its result is y, by default the activation at `place`."""
    y = trace.values[place] if y is None else y
    at = trace.example(stack)
    if trace.config.norm == "layer":
        deviation = np.sqrt(np.square(x[at] - x[at].mean()).mean())
        before = f"have mean {number(x[at].mean())} and standard deviation {number(deviation)}"
    else:
        before = f"have the root mean square {number(np.sqrt(np.square(x[at]).mean()))}"
    explanation = (
        f"The {x.shape[1]} numbers of {trace.token(stack, at)} {before}; normalized, then "
        f"multiplied by learned scales{' and shifted' * (trace.config.norm == 'layer')}, they are "
        f"{some(y[at])}."
    )
    formula, section = _NORMS.get(trace.config.norm, (None, None))
    instead: dict[str, Any] = {"formula": formula, "section": section}
    instead["where"] = Where.of(type(make_norm(trace.config)).__call__)
    axes = (trace.tokens(stack), "feature")
    return step(kind, group, explanation, y, axes, (place,), (at,), **instead)


def _feed_forward_steps(
    trace: Trace, stack: str, group: tuple[str, ...], path: str
) -> Iterator[WalkStep]:
    at = trace.example(stack)
    tokens = trace.tokens(stack)
    hidden = trace.values[f"{path}.hidden"]
    y = trace.values[path]
    active = int((hidden[at] > 0).sum())
    neuron = int(np.abs(hidden[at]).argmax())
    explanation = (
        f"Each token is processed by itself. Of {hidden.shape[1]} neurons {active} are above 0 for "
        f"{trace.token(stack, at)}; neuron {neuron} has the largest magnitude, "
        f"{number(hidden[at, neuron])}."
    )
    places = (f"{path}.input", f"{path}.hidden")
    instead = _activation(trace.config)
    yield step(
        "hidden", group, explanation, hidden, (tokens, "neuron"), places, (at, neuron), **instead
    )
    explanation = (
        f"The {hidden.shape[1]} neurons of {trace.token(stack, at)} are projected to {y.shape[1]} "
        f"numbers: {some(y[at])}."
    )
    formula = None if trace.config.feed_forward_bias else "FFN(x) = h W_2"
    yield step(
        "feed_forward", group, explanation, y, (tokens, "feature"), (path,), (at,), formula=formula
    )


def _activation(c: TransformerConfig) -> dict[str, str]:
    """Formula and source of the inner feed-forward layer."""
    applied, source = _ACTIVATIONS.get(c.activation, (f"{c.activation}({{}})", ""))
    linear = "x W_{0} + b_{0}" if c.feed_forward_bias else "x W_{0}"
    inner = linear.format(1)
    if c.gated_feed_forward:
        gated = f"h = {applied.format(linear.format('g'))} ⊙ ({inner})"
        return {"formula": gated, "section": "section 3.3; Shazeer 2020"}
    section = f"section 3.3; {source}" if source else "section 3.3, equation 2"
    return {"formula": f"h = {applied.format(inner)}", "section": section}


_WAVES = "PE_(p, 2i) = sin(p/10000^(2i/d_model)), PE_(p, {}) = cos(p/10000^(2i/d_model))"
_ADDED = {
    "SinusoidalPositions": _WAVES.format("2i+1"),
    "SinusoidalHalves": _WAVES.format("d_model/2+i").replace("PE_(p, 2i)", "PE_(p, i)"),
    "LearnedPositions": 'PE_p "is row" p "of a learned table"',
}
"""Formulas of position encodings that are added to embeddings, by class name."""


def embedding_steps(trace: Trace, stack: str) -> Iterator[WalkStep]:
    """Steps from a stack's text to the input of its first layer."""
    c = trace.config
    group = (stack, "embedding")
    at = trace.example(stack)
    ids = np.array(trace.reading.tokens[stack])
    yield from _token_steps(trace, stack, ids)

    place = _positions_place(trace, stack)
    embedded = trace.values[f"{place}.input"]
    axes = (trace.tokens(stack), "feature")
    places = (f"{place}.input",)
    scale = math.sqrt(c.d_model) if c.scale_embeddings else 1.0
    explanation = (
        f"Row {ids[at]} of the embedding matrix E is the embedding of {trace.token(stack, at)}: "
        f"{some(embedded[at] / scale)}, {c.d_model} learned numbers."
    )
    yield step("embedding", group, explanation, embedded / scale, axes, places, (at,))
    if c.scale_embeddings:
        explanation = (
            f"Each number is multiplied by √d_model = √{c.d_model} = {scale:.4g}; "
            f"{trace.token(stack, at)} has {some(embedded[at])}."
        )
        yield step("embedding_scale", group, explanation, embedded, axes, places, (at,))

    encoding = encoding_class(c)
    x = trace.values[place]
    if encoding.has("embed"):
        added = x - embedded
        code = Where.of(encoding.embed)
        explanation = (
            f"Attention alone ignores order. {trace.token(stack, at)} is at position {at}, so "
            f"{some(added[at])} is added to its embedding."
        )
        instead = {"where": code, "formula": _ADDED.get(encoding.__name__)}
        yield step("positions", group, explanation, added, axes, (place,), (at,), **instead)
        explanation = f"The sum for {trace.token(stack, at)} begins with {some(x[at])}."
        yield step("embedded", group, explanation, x, axes, (place,), (at,), where=code)
    yield from _type_and_norm_steps(trace, stack, x)


def _token_steps(trace: Trace, stack: str, ids: np.ndarray) -> Iterator[WalkStep]:
    group = (stack, "embedding")
    tokens = trace.tokens(stack)
    texts = trace.reading.texts
    text = texts.get("source" if stack == "encoder" else "target", texts.get("text"))
    subject = "The text" if text is None else quoted(text)
    if stack == "decoder" and "encoder" in trace.reading.tokens:
        subject += ", shifted right after a start token,"
    explanation = (
        f"{subject} becomes {len(ids)} tokens, numbered from 0, with the tokenizer's special "
        "tokens such as the end of the text."
    )
    yield step("tokens", group, explanation, np.arange(len(ids)), (tokens,))
    at = trace.example(stack)
    explanation = f"{trace.token(stack, at)} is entry {ids[at]} of the vocabulary."
    yield step("ids", group, explanation, ids, (tokens,), example=(at,))


def _positions_place(trace: Trace, stack: str) -> str:
    """Path of the positions of a stack: its own, or those of a model with one stack."""
    path = {"encoder": "source_positions", "decoder": "target_positions"}[stack]
    return path if f"{path}.input" in trace.values else "input.positions"


def _type_and_norm_steps(trace: Trace, stack: str, x: np.ndarray) -> Iterator[WalkStep]:
    """Steps of BERT's token types and of the norm before the first layer, if the model has them."""
    c = trace.config
    group = (stack, "embedding")
    axes = (trace.tokens(stack), "feature")
    places = (f"{stack}.input",)
    at = trace.example(stack)
    if "token_types" in trace.params.get("input", {}):
        tokens, positions = trace.reading.inputs[:2]
        batch = token_types(jnp.asarray(tokens), jnp.asarray(positions), c.separator_id)
        types = np.minimum(np.asarray(batch)[0, : len(x)], c.num_token_types - 1)
        x = x + np.asarray(trace.params["input"]["token_types"])[types]
        explanation = (
            f"{trace.token(stack, at)} belongs to part {types[at]} of the text; adding the vector "
            f"of that part gives {some(x[at])}."
        )
        yield step("token_types", group, explanation, x, axes, places, (at,))
    if c.embedding_norm:
        normed = trace.values[f"{stack}.input"]
        explanation = (
            f"The norm over the {c.d_model} numbers of each token gives {some(normed[at])}."
        )
        has_two_stacks = "input.positions" not in trace.values
        code = Where.of(EncoderDecoder.encode) if has_two_stacks else None
        yield step("embedding_norm", group, explanation, normed, axes, places, (at,), where=code)
