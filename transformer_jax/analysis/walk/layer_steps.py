"""The layers of a stack: sublayers with norm and residual around them (sections 3.1 and 3.3)."""

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer_jax.analysis.walk.attention_steps import Attending, attention_steps
from transformer_jax.analysis.walk.step import Seen, WalkStep, Where, number, quoted, some, step
from transformer_jax.models.encoder_only import token_types
from transformer_jax.nn.config import TransformerConfig
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


def layer_steps(seen: Seen, stack: str, index: int) -> Iterator[WalkStep]:
    """All sublayers of a layer."""
    stream = f"{stack}.layer_{index - 1}" if index else f"{stack}.input"
    for name in _TITLES:
        path = f"{stack}.layer_{index}.{name}"
        if path in seen.values:
            yield from _sublayer_steps(seen, stack, index, name, seen.values[stream])
            stream = f"{path}_residual"


def _sublayer_steps(
    seen: Seen, stack: str, index: int, name: str, stream: np.ndarray
) -> Iterator[WalkStep]:
    """A sublayer, with the norms that stand around it and the residual connection."""
    c, path = seen.config.of_layer(index), f"{stack}.layer_{index}.{name}"
    group = (stack, f"layer {index}", _TITLES[name])
    if c.norm_placement != "post":
        yield norm_step(seen, "norm_before", stack, group, stream, f"{path}.input")
    if name == "feed_forward":
        yield from _feed_forward_steps(seen, stack, group, path)
    else:
        source = "encoder" if name == "cross_attention" else stack
        yield from attention_steps(Attending(seen, path, stack, source, group, c))

    y, after = seen.values[path], f"{path}_residual"
    at, axes = seen.example(stack), (seen.tokens(stack), "feature")
    if c.norm_placement == "sandwich":
        y = seen.values[after] - stream
        yield norm_step(seen, "norm_after", stack, group, seen.values[path], after, y)
    total = stream + y if c.norm_placement == "post" else seen.values[after]
    what = "its norm" if c.norm_placement == "sandwich" else "the sublayer's output"
    said = (
        f"The stream of {seen.token(stack, at)} {some(stream[at])} plus {what} {some(y[at])} is "
        f"{some(total[at])}: what was there stays, and the sublayer adds to it."
    )
    how = _RESIDUALS.get(c.norm_placement, {})
    yield step("residual", group, said, total, axes, (path, after), (at,), **how)
    if c.norm_placement == "post":
        yield norm_step(seen, "norm_after", stack, group, total, after)


def norm_step(
    seen: Seen,
    kind: str,
    stack: str,
    group: tuple[str, ...],
    x: np.ndarray,
    place: str,
    y: np.ndarray | None = None,
) -> WalkStep:
    """The norm y of x; by default y is the value of the place."""
    y, at = seen.values[place] if y is None else y, seen.example(stack)
    spread = np.sqrt(np.square(x[at] - x[at].mean()).mean())
    before = f"have mean {number(x[at].mean())} and standard deviation {number(spread)}"
    if seen.config.norm != "layer":
        before = f"have the root mean square {number(np.sqrt(np.square(x[at]).mean()))}"
    said = (
        f"The {x.shape[1]} numbers of {seen.token(stack, at)} {before}; brought to 1, then "
        f"multiplied by learned scales{', and shifted,' * (seen.config.norm == 'layer')} they are "
        f"{some(y[at])}."
    )
    formula, section = _NORMS.get(seen.config.norm, (None, None))
    how: dict[str, Any] = {"formula": formula, "section": section}
    how["where"] = Where.of(type(make_norm(seen.config)), "__call__")
    axes = (seen.tokens(stack), "feature")
    return step(kind, group, said, y, axes, (place,), (at,), **how)


def _feed_forward_steps(
    seen: Seen, stack: str, group: tuple[str, ...], path: str
) -> Iterator[WalkStep]:
    at, tokens = seen.example(stack), seen.tokens(stack)
    hidden, y = seen.values[f"{path}.hidden"], seen.values[path]
    active = int((hidden[at] > 0).sum())
    neuron = int(np.abs(hidden[at]).argmax())
    said = (
        f"Each token is by itself here. Of {hidden.shape[1]} neurons {active} are above 0 for "
        f"{seen.token(stack, at)}; neuron {neuron} speaks loudest, {number(hidden[at, neuron])}."
    )
    axes, places = (tokens, "neuron"), (f"{path}.input", f"{path}.hidden")
    how = _activation(seen.config)
    yield step("hidden", group, said, hidden, axes, places, (at, neuron), **how)
    said = (
        f"The {hidden.shape[1]} neurons of {seen.token(stack, at)} become {y.shape[1]} numbers "
        f"again: {some(y[at])}."
    )
    formula = None if seen.config.feed_forward_bias else "FFN(x) = h W_2"
    yield step("feed_forward", group, said, y, (tokens, "feature"), (path,), (at,), formula=formula)


def _activation(c: TransformerConfig) -> dict[str, str]:
    """Formula and source of the inner layer."""
    applied, source = _ACTIVATIONS.get(c.activation, (f"{c.activation}({{}})", ""))
    linear = "x W_{0} + b_{0}" if c.feed_forward_bias else "x W_{0}"
    inner, gate = linear.format(1), linear.format("g")
    if c.gated_feed_forward:
        gated = f"h = {applied.format(gate)} ⊙ ({inner})"
        return {"formula": gated, "section": "section 3.3; Shazeer 2020"}
    section = f"section 3.3; {source}" if source else "section 3.3, equation 2"
    return {"formula": f"h = {applied.format(inner)}", "section": section}


# FOLDED analysis.walk.embedding_steps: From text to what the first layer reads (sections 3.4 and
# 3.5).


_WAVES = "PE_(p, 2i) = sin(p/10000^(2i/d_model)), PE_(p, {}) = cos(p/10000^(2i/d_model))"
_ADDED = {
    "SinusoidalPositions": _WAVES.format("2i+1"),
    "SinusoidalHalves": _WAVES.format("d_model/2+i").replace("PE_(p, 2i)", "PE_(p, i)"),
    "LearnedPositions": 'PE_p "is row" p "of a learned table"',
}
"""Formulas of what is added to embeddings, by the name of the encoding's class."""


def embedding_steps(seen: Seen, stack: str) -> Iterator[WalkStep]:
    """Tokens, ids, embeddings and positions of what a stack reads."""
    c, group = seen.config, (stack, "embedding")
    at, tokens = seen.example(stack), seen.tokens(stack)
    ids = np.array(seen.reading.tokens[stack])
    yield from _token_steps(seen, stack, ids)

    place = _positions_place(seen, stack)
    embedded = seen.values[f"{place}.input"]
    axes, places = (tokens, "feature"), (f"{place}.input",)
    scale = math.sqrt(c.d_model) if c.scale_embeddings else 1.0
    said = (
        f"Row {ids[at]} of the embedding matrix E stands for {seen.token(stack, at)}: "
        f"{some(embedded[at] / scale)}, {c.d_model} numbers that were learned."
    )
    yield step("embedding", group, said, embedded / scale, axes, places, (at,))
    if c.scale_embeddings:
        said = (
            f"Each number is multiplied by √d_model = √{c.d_model} = {scale:.4g}: those of "
            f"{seen.token(stack, at)} become {some(embedded[at])}."
        )
        yield step("embedding_scale", group, said, embedded, axes, places, (at,))

    encoding = encoding_class(c)
    x = seen.values[place]
    if encoding.has("embed"):
        added, where = x - embedded, Where.of(encoding, "embed")
        said = (
            f"Attention alone does not know order. {seen.token(stack, at)} stands at position "
            f"{at}, and so {some(added[at])} is added to it."
        )
        how = {"where": where, "formula": _ADDED.get(encoding.__name__)}
        yield step("positions", group, said, added, axes, (place,), (at,), **how)
        said = f"The sum for {seen.token(stack, at)} begins with {some(x[at])}."
        yield step("embedded", group, said, x, axes, (place,), (at,), where=where)
    yield from _type_and_norm_steps(seen, stack, x)


def _token_steps(seen: Seen, stack: str, ids: np.ndarray) -> Iterator[WalkStep]:
    group, tokens = (stack, "embedding"), seen.tokens(stack)
    text = _text(seen, stack)
    given = "The text" if text is None else quoted(text)
    if stack == "decoder" and "encoder" in seen.reading.tokens:
        given += ", shifted right behind a token that starts it,"
    said = (
        f"{given} becomes {len(ids)} tokens, numbered from 0; those that stand for no text, such "
        "as the end, are the tokenizer's."
    )
    yield step("tokens", group, said, np.arange(len(ids)), (tokens,))
    at = seen.example(stack)
    said = f"{seen.token(stack, at)} is entry {ids[at]} of the vocabulary."
    yield step("ids", group, said, ids, (tokens,), example=(at,))


def _text(seen: Seen, stack: str) -> str | None:
    texts = seen.reading.texts
    side = "source" if stack == "encoder" else "target"
    return texts.get(side, texts.get("text"))


def _positions_place(seen: Seen, stack: str) -> str:
    own = {"encoder": "source_positions", "decoder": "target_positions"}[stack]
    return own if f"{own}.input" in seen.values else "input.positions"


def _type_and_norm_steps(seen: Seen, stack: str, x: np.ndarray) -> Iterator[WalkStep]:
    """BERT's token types, and the norm that some models have before their first layer."""
    c, group, axes = seen.config, (stack, "embedding"), (seen.tokens(stack), "feature")
    at, read = seen.example(stack), seen.values[f"{stack}.input"]
    if "token_types" in seen.params.get("input", {}):
        tokens, positions = seen.reading.inputs[:2]
        found = token_types(jnp.asarray(tokens), jnp.asarray(positions), c.separator_id)
        types = np.asarray(found)[0, : len(x)]
        types = np.minimum(types, c.num_token_types - 1)
        x = x + np.asarray(seen.params["input"]["token_types"])[types]
        said = (
            f"{seen.token(stack, at)} belongs to part {types[at]} of the text, and the vector of "
            f"that part is added: {some(x[at])}."
        )
        yield step("token_types", group, said, x, axes, (f"{stack}.input",), (at,))
    if c.embedding_norm:
        said = f"The norm over each token's {c.d_model} numbers makes {some(read[at])} of them."
        is_pair = "input.positions" not in seen.values
        pair = Where("transformer_jax/models/encoder_decoder.py", "EncoderDecoder.encode")
        instead = {"where": pair} if is_pair else {}
        places = (f"{stack}.input",)
        yield step("embedding_norm", group, said, read, axes, places, (at,), **instead)
