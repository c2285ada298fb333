"""From the last features to what a model says: logits and the table of the likeliest outputs."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.analysis.activations import LOGITS
from transformer_jax.analysis.walk.attention_steps import softmax
from transformer_jax.analysis.walk.step import (
    Axis,
    Seen,
    WalkStep,
    Where,
    number,
    quoted,
    some,
    step,
)
from transformer_jax.inference.batches import unpad
from transformer_jax.models.apply import apply, call
from transformer_jax.models.classifier import TextClassifier, TokenClassifier
from transformer_jax.nn.hooks import HookPoint, intercept_activations
from transformer_jax.parallel import hosts
from transformer_jax.parallel.sharding import place_like, round_up_rows
from transformer_jax.runtime import platform

NUM_SHOWN = 5
"""Outputs that a table shows."""


def prediction_steps(seen: Seen) -> Iterator[WalkStep]:
    """Logits and, where no token is written after the other, what they mean."""
    stack = seen.reading.last_stack
    if isinstance(seen.model, TokenClassifier | TextClassifier):
        yield from _class_steps(seen)
        return
    if "prediction_head" in seen.params:
        yield _head_step(seen, stack)
    yield _logits_step(seen, stack)
    if stack == "decoder":
        last = len(seen.reading.tokens[stack]) - 1
        where = f"behind {seen.token(stack, last)}"
        yield table(seen, "next", (), seen.values[LOGITS][last], where)
    else:
        ids = np.array(seen.reading.tokens[stack])
        for place in np.flatnonzero(ids == seen.mask).tolist():
            where = f"at place {place}, where {seen.token(stack, place)} stands"
            yield table(seen, "filled", (f"place {place}",), seen.values[LOGITS][place], where)


def table(
    seen: Seen,
    kind: str,
    group: tuple[str, ...],
    logits: np.ndarray,
    place: str,
    written: str = "",
) -> WalkStep:
    """The likeliest outputs, with logit and probability [N, 2].

    Args:
      group: behind ("prediction",), or the whole group of a decoding step.
      logits: [V].
      place: where, as a part of a sentence.
      written: what is done with them, further sentences.
    """
    probabilities = softmax(logits.astype(np.float64))
    best = np.argsort(-probabilities, kind="stable")[:NUM_SHOWN]
    names = tuple(seen.name_of(int(i)) for i in best)
    said = (
        f"The softmax over all {len(logits):,} makes probabilities of the logits: "
        f"{quoted(names[0])} has {100 * probabilities[best[0]]:.1f}% {place}.{written}"
    )
    values = np.stack([logits[best], probabilities[best]], axis=1)
    axes = (Axis("candidate", names), Axis("number", ("logit", "probability")))
    group = group if group[:1] == ("decoding",) else ("prediction", *group)
    return step(kind, group, said, values, axes, (LOGITS,), (0, 1))


def _head_step(seen: Seen, stack: str) -> WalkStep:
    """BERT's features as they meet the embedding matrix."""
    features = _unprojected(seen.model, seen.params, seen.reading.inputs)[: len(seen.values[stack])]
    at, c = seen.example(stack), seen.config
    said = (
        f"One more layer, its {c.activation} and its norm turn the features of "
        f"{seen.token(stack, at)} to {some(features[at])}."
    )
    group, axes = ("prediction",), (seen.tokens(stack), "feature")
    return step("prediction_head", group, said, features, axes, (stack,), (at,))


def _unprojected(model: Any, params: Any, inputs: Sequence[np.ndarray]) -> np.ndarray:
    found = jax.jit(lambda p, x: apply(model, p, *x, method="unprojected").x)(params, inputs)
    return np.asarray(hosts.to_host(found))[0]


def _logits_step(seen: Seen, stack: str) -> WalkStep:
    c, logits, at = seen.config, seen.values[LOGITS], seen.example(stack)
    tied = c.tie_embeddings in ("all", "target")
    formula = f"x {'E' if tied else 'U'}^T"
    formula = f"({formula})/√(d_model)" if c.scale_logits else formula
    if c.logits_bias or "prediction_head" in seen.params:
        formula += " + c"
    formula = f"k tanh(({formula})/k)" if c.final_logit_cap else formula
    best = int(logits[at].argmax())
    matrix = "rows of the embedding matrix E again" if tied else "rows of a matrix U of their own"
    said = (
        f"The features of {seen.token(stack, at)} meet {logits.shape[1]:,} {matrix}, one for each "
        f"token of the vocabulary; the highest logit, {number(logits[at, best])}, is that of "
        f"{quoted(seen.name_of(best))}."
    )
    entries = Axis("vocabulary entry", tuple(map(seen.name_of, range(logits.shape[1]))))
    group, axes, places = ("prediction",), (seen.tokens(stack), entries), (stack, LOGITS)
    formula = f"z = {formula}"
    return step("logits", group, said, logits, axes, places, (at, best), formula=formula)


def _class_steps(seen: Seen) -> Iterator[WalkStep]:
    """What a classifier says of a text, or of each token."""
    logits, stack = seen.values[LOGITS], seen.reading.last_stack
    if not isinstance(seen.model, TokenClassifier):
        yield table(seen, "classes", (), logits[0], "for the text")
        return
    where = Where("transformer_jax/models/classifier.py", "TokenClassifier.__call__")
    for i, row in enumerate(logits):
        of_token = table(seen, "classes", (f"token {i}",), row, f"for {seen.token(stack, i)}")
        yield dataclasses.replace(of_token, where=where)


# FOLDED analysis.walk.decoding_steps: The text written token by token: `prefill` and `decode_step`
# of the model, with its cache. H heads, G heads of keys and values, L slots, K key size of a head,
# S source tokens.


class Decoded(NamedTuple):
    """One token fed in.

    Attributes:
      logits: [V], of the next.
      weights: of each layer, "self" [layers, H, L] and "cross" [layers, H, S].
      keys: the first layer's cache after it, [G, L, K].
      length: slots of the cache filled after it.
      layers: that have a cache.
    """

    logits: np.ndarray
    weights: dict[str, np.ndarray]
    keys: np.ndarray
    length: int
    layers: int


def decoding_steps(seen: Seen) -> Iterator[WalkStep]:
    """What happens for each token that the decoder reads; nothing where the model writes none."""
    if not hasattr(seen.model, "decode_step") or seen.reading.last_stack != "decoder":
        return
    for index, decoded in enumerate(decode(seen)):
        token = seen.reading.pieces["decoder"][index]
        group = ("decoding", f"token {index}, {quoted(token)}")
        yield _cache_step(seen, group, index, decoded)
        for kind, name in (("past", "self"), ("source", "cross")):
            if name in decoded.weights:
                yield _weights_step(seen, group, kind, index, decoded.weights[name])
        taken = _taken(seen, index, decoded.logits)
        yield table(seen, "next", group, decoded.logits, f"behind {quoted(token)}", taken)


def decode(seen: Seen) -> Iterator[Decoded]:
    """Feeds the tokens of the reading to the model, one at a time."""
    tokens, inputs = seen.reading.tokens["decoder"], seen.reading.inputs
    rows = round_up_rows(1, seen.params)

    def on_devices(*values: Any) -> Any:
        return place_like(seen.params, tuple(np.repeat(value, rows, axis=0) for value in values))

    given: tuple[np.ndarray, ...] = (np.array([tokens[:1]], np.int32), np.ones(1, np.int32))
    if "encoder" in seen.reading.tokens:
        given = (inputs[0], np.array([len(seen.reading.tokens["encoder"])], np.int32), *given)
    slots = inputs[-1].shape[1]
    prefill = _program(seen.model, "prefill", slots)
    (logits, memory, state), weights = prefill(seen.params, *on_devices(*given))
    yield _decoded(seen, logits, state, weights, 1)
    decode_step = _program(seen.model, "decode_step")
    for index, token in enumerate(tokens[1:], 1):
        new = on_devices(np.array([token], np.int32))
        (logits, state), weights = decode_step(seen.params, *new, memory, state)
        yield _decoded(seen, logits, state, weights, index + 1)


@functools.lru_cache(maxsize=16)
def _program(model: Any, method: str, *options: Any) -> Callable[..., Any]:
    """A compiled method of a model: what it returns, and the decoder's weights by place."""

    def wanted(path: str) -> bool:
        return path.startswith("decoder.") and path.endswith("_attention.weights")

    def run(params: Any, *inputs: Any) -> Any:
        found: dict[str, jax.Array] = {}

        def keep(place: HookPoint, x: jax.Array) -> jax.Array:
            found[place.path] = x
            return x

        with intercept_activations(keep, wanted):
            return call(model, params, method, *inputs, *options), found

    return jax.jit(run, compiler_options=platform.compiler_options())


def _decoded(seen: Seen, logits: Any, state: Any, weights: dict[str, Any], length: int) -> Decoded:
    found = {path: value[0, :, 0] for path, value in unpad(weights, 1).items()}
    widths = {"self": length, "cross": len(seen.reading.tokens.get("encoder", ()))}
    by_kind = {}
    for kind, width in widths.items():
        layers = [
            value[:, :width]
            for i in range(len(state))
            if (value := found.get(f"decoder.layer_{i}.{kind}_attention.weights")) is not None
        ]
        if layers:
            by_kind[kind] = np.stack(layers)
    cache = unpad(state[0], 1)
    return Decoded(
        logits=unpad(logits, 1)[0].astype(np.float32),
        weights=by_kind,
        keys=cache.keys[0, :, :, 0].astype(np.float32),
        length=int(cache.length[0]),
        layers=len(state),
    )


def _cache_step(seen: Seen, group: tuple[str, ...], index: int, decoded: Decoded) -> WalkStep:
    heads, slots, size = decoded.keys.shape
    empty = [f"slot {i}" for i in range(decoded.length, slots)]
    pieces = seen.reading.pieces["decoder"][: decoded.length]
    said = (
        f"{seen.token('decoder', index)} goes in alone. Each of the {decoded.layers} layers writes "
        f"its key and its value to slot {index} of its cache of {heads} × {slots} × {size} numbers "
        f"each: {decoded.length - 1} of {slots} were filled, now {decoded.length}. Below are "
        "the keys of layer 0."
    )
    axes = (Axis("head"), Axis("slot", (*pieces, *empty)), "feature")
    return step("cache", group, said, decoded.keys, axes, (), (0, index))


def _weights_step(
    seen: Seen, group: tuple[str, ...], kind: str, index: int, weights: np.ndarray
) -> WalkStep:
    stack = "decoder" if kind == "past" else "encoder"
    met = int(weights[-1, 0].argmax())
    what = f"{index + 1} keys of the cache" if kind == "past" else "keys of the encoder's output"
    said = (
        f"One query of {seen.token('decoder', index)} meets the {what}. In the last layer head 0 "
        f"gives {100 * weights[-1, 0, met]:.1f}% to {seen.token(stack, met)}."
    )
    labels = tuple(seen.reading.pieces[stack][: weights.shape[2]])
    axes = (Axis("layer"), Axis("head"), Axis("key", labels))
    return step(kind, group, said, weights, axes, (), (len(weights) - 1, 0, met))


def _taken(seen: Seen, index: int, logits: np.ndarray) -> str:
    """What the text goes on with, as a sentence."""
    tokens = seen.reading.tokens["decoder"][1:]
    following = [*tokens, *(seen.reading.outputs or ())[len(tokens) :]]
    if index >= len(following):
        return " Here the text ends."
    rank = int((logits > logits[following[index]]).sum())
    likely = "the likeliest" if not rank else f"number {rank + 1} of them"
    return f" The text goes on with {quoted(seen.name_of(following[index]))}, {likely}."
