"""The layers of a stack: sublayers with norm and residual around them (sections 3.1 and 3.3)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from transformer_jax.analysis.walk.attending import Attending
from transformer_jax.analysis.walk.attention_steps import attention_steps
from transformer_jax.analysis.walk.catalogue import Where
from transformer_jax.analysis.walk.seen import Seen, number, some, step
from transformer_jax.analysis.walk.step import Step
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.norms import make_norm

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


def layer_steps(seen: Seen, stack: str, index: int) -> Iterator[Step]:
    """All sublayers of a layer."""
    stream = f"{stack}.layer_{index - 1}" if index else f"{stack}.input"
    for name in _TITLES:
        path = f"{stack}.layer_{index}.{name}"
        if path in seen.values:
            yield from _sublayer_steps(seen, stack, index, name, seen.values[stream])
            stream = f"{path}_residual"


def _sublayer_steps(
    seen: Seen, stack: str, index: int, name: str, stream: np.ndarray
) -> Iterator[Step]:
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
) -> Step:
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
) -> Iterator[Step]:
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
