# SPDX-License-Identifier: Apache-2.0
"""Steps from the last features to a prediction: logits, the most likely outputs, and decoding.

Decoding feeds the text token by token to the model's `prefill` and `decode_step`, with its cache.
H heads, G heads of keys and values, L slots, K key size of a head, S source tokens, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.inference.batches import unpad
from transformer_jax.lab.analysis.activations import LOGITS
from transformer_jax.lab.analysis.walk.attention_steps import softmax
from transformer_jax.lab.analysis.walk.step import (
    Axis,
    Trace,
    WalkStep,
    Where,
    has_steps,
    number,
    quoted,
    some,
    step,
)
from transformer_jax.models import apply_method, apply_model
from transformer_jax.models.classifier import TextClassifier, TokenClassifier
from transformer_jax.nn.hooks import HookPoint, intercept_activations
from transformer_jax.nn.layers import attention_class
from transformer_jax.parallel import hosts
from transformer_jax.parallel.sharding import place_like, round_up_rows
from transformer_jax.runtime import platform

NUM_SHOWN = 5
"""Number of outputs in a table."""


def prediction_steps(trace: Trace) -> Iterator[WalkStep]:
    """Steps from the last features to the most likely outputs."""
    stack = trace.reading.last_stack
    if isinstance(trace.model, TokenClassifier | TextClassifier):
        yield from _class_steps(trace)
        return
    if "prediction_head" in trace.params:
        yield _head_step(trace, stack)
    yield _logits_step(trace, stack)
    if stack == "decoder":
        last = len(trace.reading.tokens[stack]) - 1
        place = f"after {trace.token(stack, last)}"
        yield prediction_table(trace, "next", (), trace.values[LOGITS][last], place)
    else:
        ids = np.array(trace.reading.tokens[stack])
        for i in np.flatnonzero(ids == trace.mask).tolist():
            logits = trace.values[LOGITS][i]
            place = f"at position {i}, which is {trace.token(stack, i)}"
            yield prediction_table(trace, "filled", (f"place {i}",), logits, place)


def prediction_table(
    trace: Trace,
    kind: str,
    group: tuple[str, ...],
    logits: np.ndarray,
    place: str,
    written: str = "",
) -> WalkStep:
    """The most likely outputs with logit and probability [N, 2].

    Args:
      group: appended to ("prediction",), or the whole group of a decoding step.
      logits: [V].
      place: location of the prediction, a part of a sentence.
      written: further sentences.
    """
    probabilities = softmax(logits.astype(np.float64))
    best = np.argsort(-probabilities, kind="stable")[:NUM_SHOWN]
    names = tuple(trace.name_of(int(i)) for i in best)
    explanation = (
        f"The softmax over all {len(logits):,} logits gives probabilities: "
        f"{quoted(names[0])} has {100 * probabilities[best[0]]:.1f}% {place}.{written}"
    )
    values = np.stack([logits[best], probabilities[best]], axis=1)
    axes = (Axis("candidate", names), Axis("number", ("logit", "probability")))
    group = group if group[:1] == ("decoding",) else ("prediction", *group)
    return step(kind, group, explanation, values, axes, (LOGITS,), (0, 1))


def _head_step(trace: Trace, stack: str) -> WalkStep:
    """BERT's prediction head, between the last layer and the embedding matrix."""
    program = jax.jit(lambda p, x: apply_model(trace.model, p, *x, method="unprojected").x)
    rows = np.asarray(hosts.to_host(program(trace.params, trace.reading.inputs)))
    # Without padding, which `collect` has removed from the other activations.
    features = rows[0, : len(trace.values[stack])]
    at = trace.example(stack)
    explanation = (
        f"A dense layer, {trace.config.activation} and a norm turn the features of "
        f"{trace.token(stack, at)} into {some(features[at])}."
    )
    axes = (trace.tokens(stack), "feature")
    return step("prediction_head", ("prediction",), explanation, features, axes, (stack,), (at,))


def _logits_step(trace: Trace, stack: str) -> WalkStep:
    c = trace.config
    logits = trace.values[LOGITS]
    at = trace.example(stack)
    tied = c.tie_embeddings in ("all", "target")
    formula = f"x {'E' if tied else 'U'}^T"
    if c.scale_logits:
        formula = f"({formula})/√(d_model)"
    if c.logits_bias or "prediction_head" in trace.params:
        formula += " + c"
    if c.final_logit_cap:
        formula = f"k tanh(({formula})/k)"
    best = int(logits[at].argmax())
    matrix = "rows of the embedding matrix E again" if tied else "rows of an output matrix U"
    explanation = (
        f"The dot products of the features of {trace.token(stack, at)} with {logits.shape[1]:,} "
        f"{matrix}, one for each token of the vocabulary, are its logits; the highest, "
        f"{number(logits[at, best])}, is that of {quoted(trace.name_of(best))}."
    )
    entries = Axis("vocabulary entry", tuple(map(trace.name_of, range(logits.shape[1]))))
    axes = (trace.tokens(stack), entries)
    places = (stack, LOGITS)
    formula = f"z = {formula}"
    return step(
        "logits", ("prediction",), explanation, logits, axes, places, (at, best), formula=formula
    )


def _class_steps(trace: Trace) -> Iterator[WalkStep]:
    """Class probabilities of a text, or of each token."""
    logits = trace.values[LOGITS]
    if not isinstance(trace.model, TokenClassifier):
        yield prediction_table(trace, "classes", (), logits[0], "for the text")
        return
    code = Where.of(TokenClassifier.__call__)  # `KINDS` has that of a classifier of texts
    for i, row in enumerate(logits):
        place = f"for {trace.token(trace.reading.last_stack, i)}"
        table = prediction_table(trace, "classes", (f"token {i}",), row, place)
        yield dataclasses.replace(table, where=code)


class DecodedToken(NamedTuple):
    """Result of feeding one token to the decoder.

    Attributes:
      logits: logits [V] of the next token.
      weights: attention weights of all layers, "self" [layers, H, L] and "cross" [layers, H, S].
      keys: keys [G, L, K] after this token, of the first layer with a cache of keys; None if no
        layer has one.
      layers: numbers of the layers with a cache of keys.
    """

    logits: np.ndarray
    weights: dict[str, np.ndarray]
    keys: np.ndarray | None
    layers: Sequence[int]


def decoding_steps(trace: Trace) -> Iterator[WalkStep]:
    """Steps for each token that the decoder reads; none if the model does not generate."""
    if not hasattr(trace.model, "decode_step") or trace.reading.last_stack != "decoder":
        return
    for index, decoded in enumerate(decode(trace)):
        token = trace.reading.pieces["decoder"][index]
        group = ("decoding", f"token {index}, {quoted(token)}")
        if decoded.keys is not None:
            yield _cache_step(trace, group, index, decoded.keys, decoded.layers)
        for kind, name in (("past", "self"), ("source", "cross")):
            if name in decoded.weights:
                yield _weights_step(trace, group, kind, index, decoded.weights[name])
        place = f"after {quoted(token)}"
        continuation = _continuation(trace, index, decoded.logits)
        yield prediction_table(trace, "next", group, decoded.logits, place, continuation)


def decode(trace: Trace) -> Iterator[DecodedToken]:
    """Feeds the decoder's tokens to the model one at a time, with its cache."""
    tokens = trace.reading.tokens["decoder"]
    inputs = trace.reading.inputs
    rows = round_up_rows(1, trace.params)

    def on_devices(*values: Any) -> Any:
        return place_like(trace.params, tuple(np.repeat(value, rows, axis=0) for value in values))

    # A prefix of one token, and its length; before them the source, and its length.
    prompt: tuple[np.ndarray, ...] = (np.array([tokens[:1]], np.int32), np.ones(1, np.int32))
    if "encoder" in trace.reading.tokens:
        prompt = (inputs[0], np.array([len(trace.reading.tokens["encoder"])], np.int32), *prompt)
    slots = inputs[-1].shape[1]
    prefill = _program(trace.model, "prefill", slots)
    (logits, memory, state), weights = prefill(trace.params, *on_devices(*prompt))
    yield _decoded(trace, logits, state, weights, 1)
    decode_step = _program(trace.model, "decode_step")
    for index, token in enumerate(tokens[1:], 1):
        new = on_devices(np.array([token], np.int32))
        (logits, state), weights = decode_step(trace.params, *new, memory, state)
        yield _decoded(trace, logits, state, weights, index + 1)


@functools.lru_cache(maxsize=16)
def _program(model: Any, method: str, *options: Any) -> Callable[..., Any]:
    """Compiles a method of a model that also returns the decoder's attention weights by path."""

    def wanted(path: str) -> bool:
        return path.startswith("decoder.") and path.endswith("_attention.weights")

    def run(params: Any, *inputs: Any) -> Any:
        weights: dict[str, jax.Array] = {}

        def keep(point: HookPoint, x: jax.Array) -> jax.Array:
            weights[point.path] = x
            return x

        with intercept_activations(keep, wanted):
            return apply_method(model, params, method, *inputs, *options), weights

    return jax.jit(run, compiler_options=platform.compiler_options())


def _decoded(
    trace: Trace, logits: Any, state: Any, weights: dict[str, Any], length: int
) -> DecodedToken:
    by_path = {path: value[0, :, 0] for path, value in unpad(weights, 1).items()}
    widths = {"self": length, "cross": len(trace.reading.tokens.get("encoder", ()))}
    by_kind = {}
    for kind, width in widths.items():
        paths = [f"decoder.layer_{i}.{kind}_attention.weights" for i in range(len(state))]
        layers = [by_path[path][:, :width] for path in paths if path in by_path]
        if layers:
            by_kind[kind] = np.stack(layers)
    classes = [attention_class(trace.config.of_layer(i)) for i in range(len(state))]
    with_keys = [i for i, cls in enumerate(classes) if has_steps(cls)]
    cache = unpad(state[with_keys[0]], 1) if with_keys else None
    return DecodedToken(
        logits=unpad(logits, 1)[0].astype(np.float32),
        weights=by_kind,
        keys=None if cache is None else cache.keys[0, :, :, 0].astype(np.float32),
        layers=with_keys,
    )


def _cache_step(
    trace: Trace, group: tuple[str, ...], index: int, keys: np.ndarray, layers: Sequence[int]
) -> WalkStep:
    heads, slots, size = keys.shape
    length = index + 1
    empty = [f"slot {i}" for i in range(length, slots)]
    pieces = trace.reading.pieces["decoder"][:length]
    explanation = (
        f"The input is {trace.token('decoder', index)} alone. Each of the {len(layers)} layers "
        f"writes its key and value to slot {index} of its cache of {heads} × {slots} × {size} "
        f"numbers; {length} of {slots} slots are filled. Shown: the keys of layer {layers[0]}."
    )
    axes = (Axis("head"), Axis("slot", (*pieces, *empty)), "feature")
    return step("cache", group, explanation, keys, axes, (), (0, index))


def _weights_step(
    trace: Trace, group: tuple[str, ...], kind: str, index: int, weights: np.ndarray
) -> WalkStep:
    stack = "decoder" if kind == "past" else "encoder"
    key = int(weights[-1, 0].argmax())
    keys = f"{index + 1} keys of the cache" if kind == "past" else "keys of the encoder's output"
    explanation = (
        f"The query of {trace.token('decoder', index)} attends to the {keys}. In the last layer "
        f"head 0 gives {100 * weights[-1, 0, key]:.1f}% to {trace.token(stack, key)}."
    )
    labels = tuple(trace.reading.pieces[stack][: weights.shape[2]])
    axes = (Axis("layer"), Axis("head"), Axis("key", labels))
    return step(kind, group, explanation, weights, axes, (), (len(weights) - 1, 0, key))


def _continuation(trace: Trace, index: int, logits: np.ndarray) -> str:
    """The next token of the text and its rank, as a sentence."""
    tokens = trace.reading.tokens["decoder"][1:]
    # The decoder predicts the token that ends the text, but does not read it.
    following = [*tokens, *(trace.reading.outputs or ())[len(tokens) :]]
    if index >= len(following):
        return " The text ends here."
    rank = int((logits > logits[following[index]]).sum())
    likely = "the most likely token" if not rank else f"number {rank + 1} by probability"
    return f" The text continues with {quoted(trace.name_of(following[index]))}, {likely}."
